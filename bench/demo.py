"""A million codes, a few searches, and what each of them visited."""

import time

import numpy as np

from common import Cell, draw_codes, draw_images
from mchindex import BucketTable

REGIONS = ("whole", "top-left", "top-right", "bottom-left", "bottom-right", "centre")


def main() -> None:
    cell = Cell(codes_per_image=1.6)
    print(f"Drawing {cell.n:,} codes of {cell.bits} bits for {cell.images:,} images ...")
    codes, queries = draw_codes(cell, 1000, seed=7)
    ids = draw_images(cell, seed=7)
    # An image's first code is that of the whole image, those that follow are of its regions.
    regions = np.arange(len(ids)) - np.searchsorted(ids, ids)

    table = BucketTable(cell.bits)
    start = time.perf_counter()
    table.add(ids, codes, regions)
    seconds = time.perf_counter() - start
    print(f"Added in {seconds:.2f} s ({table.n_codes / seconds / 1e6:.1f} million codes a second).")
    print(
        f"{len(table):,} images under {table.n_codes:,} codes in {table.n_buckets:,} buckets, "
        f"{table.memory()['total'] / table.n_codes:.1f} bytes a code.\n"
    )

    result = table.search(queries[:3], k=5)
    for row, (ids_found, distances, found_regions) in enumerate(
        zip(result.ids, result.distances, result.regions, strict=True)
    ):
        print(
            f"query {row}: radius {result.radius[row]}, {result.buckets[row]:,} buckets visited, "
            f"{result.candidates[row]:,} codes in them"
        )
        for image, distance, region in zip(ids_found, distances, found_regions, strict=True):
            print(f"    image {image:>6}  at distance {distance}, by its {REGIONS[region]} code")

    print("\n1,000 queries at once, one thread:")
    print("      k   queries/s   mean radius   mean buckets visited")
    for k in (1, 10, 100, 1000):
        table.search(queries, k, threads=1)  # the first run warms the caches
        start = time.perf_counter()
        result = table.search(queries, k, threads=1)
        seconds = time.perf_counter() - start
        print(
            f"  {k:>5}   {len(queries) / seconds:>9,.0f}   {result.radius.mean():>11.1f}"
            f"   {result.buckets.mean(dtype=np.float64):>20.3g}"
        )
    print("\nA bucket visited may be empty; the engine counts them without going there.")


if __name__ == "__main__":
    main()
