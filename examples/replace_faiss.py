"""From a binary index of FAISS to a BucketTable: the same neighbours, and what is new.

    pip install mchindex faiss-cpu
    python replace_faiss.py

The codes here are drawn. Yours are what you give FAISS today: rows of np.packbits.
"""

import faiss
import numpy as np

from mchindex import BucketTable

BITS, IMAGES, K = 64, 20_000, 10
random = np.random.default_rng(0)
centres = random.integers(0, 2, (200, BITS), dtype=np.uint8)
flips = random.random((IMAGES, BITS)) < 0.05
bits = centres[random.integers(0, 200, IMAGES)] ^ flips
codes = np.packbits(bits, axis=1)  # (images, bits // 8) uint8
ids = np.arange(IMAGES) + 1000
queries = codes[:5]

# Before.
before = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(BITS))
before.add_with_ids(codes, ids)
distances, found = before.search(queries, K)

# After: the same codes, ids and k. The search is exact, and does not read every code.
table = BucketTable(bits=BITS)
table.add(ids, codes)
hits = table.search(queries, K)
assert np.array_equal(hits.distances, distances)
print("the same distances as IndexBinaryFlat:", hits.distances[0].tolist())

# New: several codes per image. FAISS would repeat the id; here an image appears once, at its
# nearest code, and the hit says which of its codes that was.
table.add(ids[:100], codes[5000:5100], regions=np.full(100, 1))
hits = table.search(codes[5000:5001], K)
print("found by its second code:", hits.ids[0, 0], "region", hits.regions[0, 0])
assert len(set(hits.ids[0])) == K

# New: images can be removed, and only some of them searched.
table.remove(ids[:10])
some = table.filter(ids[::2])
print("only even rows:", table.search(queries, 3, allowed=some).ids[0].tolist())

# Files have a checksum, and open without a rebuild.
table.save("codes.table")
print(BucketTable.load("codes.table", mmap=True))
