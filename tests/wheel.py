"""Run with an installed wheel, away from the sources: it searches, and imports little."""

import subprocess
import sys
import time

import numpy as np

import mchindex


def seconds(code: str) -> float:
    """The best of a few: a machine may be busy, but an import of too much is never fast."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


table = mchindex.BucketTable(bits=64)
codes = np.random.default_rng(0).integers(0, 256, (1000, 8), dtype=np.uint8)
table.add(np.arange(1000), codes)
hits = table.search(codes[:10], k=3)
assert hits.ids[:, 0].tolist() == list(range(10)), hits.ids
assert hits.distances[:, 0].tolist() == [0] * 10
assert "torch" not in sys.modules
subprocess.run([f"{sys.prefix}/bin/mch", "--version"], check=True)
subprocess.run([f"{sys.prefix}/bin/mch", "methods"], check=True, stdout=subprocess.DEVNULL)
print(f"mchindex {mchindex.__version__} in {mchindex.__file__} searches.")
print(f"import: {seconds('import mchindex'):.2f} s, numpy alone {seconds('import numpy'):.2f} s")
