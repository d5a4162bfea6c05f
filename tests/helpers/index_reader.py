"""A process that reads an index while another process writes: `index_reader.py PATH BATCH`.

It runs until the image "end" has been added, and prints how many different sizes of the index it
saw. It fails if it sees anything that was never committed. It does not import torch, so that many
of them start quickly.
"""

import sys

import numpy as np

from mchindex import MCHIndex

GROUP = 10  # images that share one code and are replaced together


def group_code(bits: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(bits // 8, 0x5A, np.uint8)


def look(index: MCHIndex, batch: int) -> int:
    """Checks all that must hold at any moment; returns the number of images."""
    length = len(index)
    # Batches are committed as a whole; only the last image is committed on its own.
    assert (length - GROUP) % batch == 0 or ("end" in index and (length - 1 - GROUP) % batch == 0)
    code = group_code(index.bits)
    group = [f"g{i}" for i in range(GROUP)]
    some = {"filter": {"kind": "group"}}
    for limits in ({}, some, {"allowed": group}, {"allowed": [*group, 0, 1], **some}):
        hits = index.search_codes(code, 2 * GROUP, max_radius=0, **limits)
        assert sorted(map(str, hits.ids)) == group, hits.ids
        assert len({hit.region for hit in hits}) == 1, "hits of two states"
        assert hits.distances == [0] * GROUP
    hits = index.search(id="g3", k=GROUP - 1)
    assert sorted(map(str, hits.ids)) == [name for name in group if name != "g3"]
    stored = index["g0"]
    assert stored.regions[0] == f"region {stored.metadata['version']}"
    return length


def main() -> None:
    path, batch = sys.argv[1], int(sys.argv[2])
    lengths = [0]
    with MCHIndex.open(path, create=False) as index:
        print("ready", flush=True)
        over = False
        while not over:
            over = "end" in index
            lengths.append(look(index, batch))
            assert lengths[-1] >= lengths[-2]
            if len(lengths) % 20 == 0:
                ids = [i for i in index if isinstance(i, int)]
                assert sorted(ids) == list(range(len(ids)))
        assert lengths[-1] == len(index)
    print(len(set(lengths)), flush=True)


if __name__ == "__main__":
    main()
