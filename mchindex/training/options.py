"""The options of a training, and the check that they make sense, before any work starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mchindex.inference.extract import MODES, Mode
from mchindex.inference.fine import FINE_BITS, check_fine_bits
from mchindex.inference.region_codes import check_bits, check_budget, check_xi
from mchindex.models.backbones import BACKBONES, Backbone
from mchindex.models.deep import DeepHash
from mchindex.models.methods import METHODS
from mchindex.models.settings import Settings
from mchindex.regions import check_sigma, read_layout
from mchindex.training.agent import AgentSettings, agent_settings
from mchindex.training.backbone import BackboneSettings
from mchindex.training.crop_labels import CropLabelSettings
from mchindex.training.features import WithCrops
from mchindex.training.pseudo_labels import PseudoLabelSettings
from mchindex.training.tuning import TuningSettings

Labelling = Literal["images", "crops", "neighbours"]


LABELLINGS: dict[str, type[Settings]] = {
    "images": Settings,
    "crops": CropLabelSettings,
    "neighbours": PseudoLabelSettings,
}


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that a trained model depends on, besides the data."""

    method: str = "dch"
    bits: int = 64
    backbone: str = "efficientnet-lite0"
    size: int | None = None  # side of the backbone's input in pixels; None: its default
    weights: str | None = None  # a file for the backbone; None: pretrained, or trained from scratch
    finetune: bool = False  # train the backbone together with the hash layer
    tune: int = 0  # how many of the backbone's last blocks are tuned for codes, see `tuning`
    regions: Mode | None = None  # None: pooled if the backbone has a feature map, else crops
    layout: str = "corners"  # which regions; see `read_layout`
    sigma: float = 0.5
    xi: float = 0.5
    crops: int = 8  # random crops per training image
    crop_sigma: tuple[float, float] | None = None  # range of their sides; None: those of the layout
    seed: int = 0
    agent: bool = True
    fine: int = FINE_BITS  # bits of the fine codes; 0: none
    # What is learnt from. "images": the images' labels, as in the paper; "crops": a crop has those
    # of its image's labels that it shows (`crop_labels`); "neighbours": no labels, but which images
    # are near each other (`pseudo_labels`).
    labels: Labelling = "images"
    labels_settings: dict[str, Any] = field(default_factory=dict)  # of "crops" or "neighbours"
    codes: float | None = None  # codes per image, on average; sets xi, which must not be given then
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    agent_settings: dict[str, Any] = field(default_factory=dict)
    backbone_settings: dict[str, Any] = field(default_factory=dict)
    tuning_settings: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ValueError for options that are wrong or contradict each other."""
        METHODS.find(self.method)
        BACKBONES.find(self.backbone)
        if self.regions is not None and self.regions not in MODES:
            raise ValueError(f"regions are {' or '.join(MODES)}, not {self.regions!r}")
        if self.regions == "pooled" and not self._has_map:
            raise ValueError(f"{self.backbone} has no feature map: use regions='crops'")
        check_bits(self.bits)
        if self.fine:
            check_fine_bits(self.fine)
        read_layout(self.layout, check_sigma(self.sigma))
        check_xi(self.xi)
        if self.crops < 1:
            raise ValueError(f"the agent learns from crops: at least 1 per image, not {self.crops}")
        if self.finetune and not issubclass(METHODS[self.method], DeepHash):
            deep = ", ".join(k for k, v in METHODS.items() if issubclass(v, DeepHash))
            raise ValueError(f"{self.method} trains no network: only {deep} can be fine-tuned")
        if self.crop_sigma is not None and check_sigma(self.crop_sigma[0]) > check_sigma(
            self.crop_sigma[1]
        ):
            raise ValueError(f"crop_sigma goes from small to large, not {self.crop_sigma}")
        METHODS[self.method].settings_type().updated(self.settings)
        self.agent_options()
        BackboneSettings().updated(self.backbone_settings)
        self._check_tuning()
        self._check_labels()
        if self.codes is not None:
            if self.xi != TrainingOptions.xi:
                raise ValueError("codes, the codes per image, sets xi: give only one of them")
            if not self.agent:
                raise ValueError("without an agent, images have one code: codes cannot be set")
            check_budget(self.codes, read_layout(self.layout, self.sigma))

    def _check_tuning(self) -> None:
        TuningSettings().updated(self.tuning_settings)
        if not self.tune:
            return
        if self.tune < 0:
            raise ValueError(f"tune is a number of blocks, not {self.tune}")
        if not self._has_map:
            raise ValueError(f"{self.backbone} has no feature map: its blocks cannot be tuned")
        if self.finetune:
            raise ValueError("finetune trains the whole backbone, tune its last blocks: give one")
        if self.labels == "neighbours":
            raise ValueError("blocks are tuned to labels: training without labels cannot do it")

    def _check_labels(self) -> None:
        if self.labels not in LABELLINGS:
            raise ValueError(f"labels is one of {', '.join(LABELLINGS)}, not {self.labels!r}")
        LABELLINGS[self.labels]().updated(self.labels_settings)
        if self.labels == "images":
            return
        own = METHODS[self.method].settings_type().updated(self.settings)
        if self.labels == "crops" and not getattr(own, "crop_share", 0):
            raise ValueError(
                f"{self.method} does not learn from crops, so labels for them have no effect"
                + (": set its crop_share above 0" if hasattr(own, "crop_share") else "")
            )
        what = "labels for crops" if self.labels == "crops" else "training without labels"
        if self.finetune:
            raise ValueError(f"{what} needs a fixed backbone: it cannot be fine-tuned")
        if self.labels == "neighbours" and self.from_scratch:
            raise ValueError(
                f"training without labels needs a trained backbone, and {self.backbone} has no "
                "pretrained weights: give a file of weights, or choose another backbone"
            )

    @property
    def _has_map(self) -> bool:
        return BACKBONES[self.backbone].feature_map is not Backbone.feature_map

    @property
    def mode(self) -> Mode:
        """How the features of regions are computed."""
        return self.regions or ("pooled" if self._has_map else "crops")

    def views(self) -> WithCrops:
        """The views of each training image: the whole, and crops of the layout's sizes."""
        if self.crop_sigma is not None:
            return WithCrops(self.crops, self.crop_sigma)
        boxes = read_layout(self.layout, self.sigma).array()[1:]
        sides = boxes[:, 2] - boxes[:, 0]
        low, high = round(float(sides.min()), 6), round(float(sides.max()), 6)
        return WithCrops(self.crops, low if low == high else (low, high))

    def agent_options(self, folds: bool = True) -> AgentSettings:
        """The agent's settings: its defaults for these options, with `agent_settings` applied.

        Without `folds`, those for data that are too few to be divided.
        """
        guessed = self.labels == "neighbours"
        own = {} if folds else {"reward": "loss", "folds": 0}
        return agent_settings(self.method, own | self.agent_settings, self.from_scratch, guessed)

    @property
    def from_scratch(self) -> bool:
        """Whether the backbone has to be trained first, because there are no weights for it."""
        own = BACKBONES[self.backbone].load_pretrained is not Backbone.load_pretrained
        return self.weights is None and not own
