"""Checks an installed wheel: run it outside the sources, in a folder that holds the README.

The table searches, `import mchindex` is light, and the README's first example runs as printed.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import mchindex


def seconds(code: str) -> float:
    """The shortest of five runs: a machine may be busy, but a heavy import is never fast."""
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
mch = f"{sys.prefix}/bin/mch"
subprocess.run([mch, "--version"], check=True)
subprocess.run([mch, "methods"], check=True, stdout=subprocess.DEVNULL)
example = re.findall(r"```python\n(.*?)```", Path("README.md").read_text("utf-8"), re.DOTALL)[0]
done = subprocess.run([sys.executable, "-c", example], check=True, capture_output=True, text=True)
lines = done.stdout.splitlines()
assert lines[0].startswith("60 added"), done.stdout
assert len(lines) == 6, done.stdout
subprocess.run([mch, "add", "photos"], check=True)  # nothing is new
subprocess.run([mch, "search", "photos/7.jpg", "-k", "3", "--out", "hits.png"], check=True)
subprocess.run([mch, "verify"], check=True)
subprocess.run([mch, "models"], check=True)
print(f"mchindex {mchindex.__version__} in {mchindex.__file__} searches.")
print(f"import: {seconds('import mchindex'):.2f} s, numpy alone {seconds('import numpy'):.2f} s")
