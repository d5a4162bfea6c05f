"""Fine codes: long codes of features, learnt without labels, that order images of one class.

Codes of a hashing method put what shares a class into one bucket. A fine code keeps what else the
features say, so that copies and parts of a picture, and pictures that look alike, come first.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor, nn

from mchindex.inference.fine import FINE_BITS, FineCodes, check_fine_bits, fine_fingerprint
from mchindex.inference.region_codes import Packed
from mchindex.models.hashing import pack, sign
from mchindex.progress import Progress, Step, silent

CELLS = 4096  # groups of similar fine codes, in a model that was fitted to enough images
PER_CELL = 16  # codes, at least, for each cell
ROTATIONS, ROUNDS = 50, 8  # iterations of ITQ and of the clustering
SAMPLE = 60_000  # features, at most, that a fit uses
ROWS = 4096  # of features or codes per pass


class FineHash(nn.Module, FineCodes):
    """Turns features into fine codes: the signs of a projection, see `project`."""

    mean: Tensor  # (dim,), or (branches, dim // branches) for several
    rotation: Tensor  # (dim, bits)
    cells: Tensor  # (cells, bits // 8) packed codes: the centres of groups of similar codes

    def __init__(self, dim: int, bits: int = FINE_BITS, cells: int = 0, branches: int = 1) -> None:
        super().__init__()
        own = (dim,) if branches == 1 else (branches, dim // branches)
        self.register_buffer("mean", torch.zeros(own))
        self.register_buffer("rotation", torch.zeros(dim, check_fine_bits(bits)))
        self.register_buffer("cells", torch.zeros(cells, bits // 8, dtype=torch.uint8))

    @property
    def bits(self) -> int:  # type: ignore[override]
        return self.rotation.shape[1]

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        parts = (self.mean, self.rotation, self.cells)
        return fine_fingerprint(*((str(part.dtype), part.cpu().numpy()) for part in parts))

    @property
    def packed_cells(self) -> Packed:
        return self.cells.cpu().numpy()

    def project(self, features: Tensor) -> Tensor:
        """(…, dim) -> (…, bits): one real number per bit. Its sign is the bit of the code, and its
        magnitude says how certain the bit is."""
        return self._centred(features).flatten(-self.mean.ndim) @ self.rotation

    def _centred(self, features: Tensor) -> Tensor:
        """Each branch is brought to length 1, so that none drowns the others: tuned features of
        what they know well are many times as large as those of other things."""
        x = features[..., -self.mean.numel() :].to(self.mean.device, torch.float32)
        return nnf.normalize(x.unflatten(-1, self.mean.shape), dim=-1) - self.mean

    def projections(self, features: NDArray[np.float16]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return self.project(torch.from_numpy(features)).cpu().numpy()

    @classmethod
    def fit(
        cls,
        features: Tensor,
        bits: int = FINE_BITS,
        seed: int = 0,
        progress: Progress = silent,
        branches: tuple[float, ...] = (1.0,),
    ) -> FineHash:
        """Fits a fine hash to (n, dim) features of images and their regions.

        The features are centred and reduced to their principal components, which a rotation then
        brings as close as possible to the corners of a cube (iterative quantisation). Those of
        several `branches`, see `Backbone.branches`, weigh what it says, whatever their length.
        """
        rng = torch.Generator().manual_seed(seed)
        if len(features) > SAMPLE:
            features = features[torch.randperm(len(features), generator=rng)[:SAMPLE]]
        dim, parts = features.shape[1], len(branches)
        hash_ = cls(dim, bits, min(CELLS, len(features) // PER_CELL), parts)
        hash_.mean.copy_(hash_._centred(features).mean(0))
        scale = torch.tensor(branches).repeat_interleave(dim // parts)[:, None]
        x = hash_._centred(features).flatten(1) * scale.T
        _, axes = torch.linalg.eigh((x.T.double() @ x.double()) / len(x))
        axes = axes.flip(1)[:, :bits].float()  # (dim, min(dim, bits))
        v = x @ axes
        # With more bits than components, the rotation has orthonormal rows only.
        turn = torch.linalg.qr(torch.randn(bits, v.shape[1], generator=rng)).Q.T
        for done in range(1, ROTATIONS + 1):
            u, _, w = torch.linalg.svd(v.T @ sign(v @ turn), full_matrices=False)
            turn = u @ w
            progress(Step("fine codes", done, ROTATIONS))
        hash_.rotation.copy_((scale * (axes @ turn)).half().float())
        hash_.mean.copy_(hash_.mean.half().float())
        hash_.cells.copy_(_clustered(sign(hash_.project(features)), len(hash_.cells), rng))
        return hash_


def _clustered(codes: Tensor, cells: int, rng: torch.Generator) -> Tensor:
    """The centres of `cells` groups of codes (n, bits) of -1 and 1, packed: k-means in which a
    centre is the bitwise majority of its codes."""
    centres = codes[torch.randperm(len(codes), generator=rng)[:cells]].clone()
    for _ in range(ROUNDS if cells else 0):
        near = torch.cat([(part @ centres.T).argmax(1) for part in codes.split(ROWS)])
        sums = torch.zeros_like(centres).index_add_(0, near, codes)
        centres = torch.where(sums == 0, centres, sign(sums))  # an empty group keeps its centre
    return torch.from_numpy(pack(centres))
