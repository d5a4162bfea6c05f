"""Checks an installed wheel: run it outside the sources, in a folder that holds the README.

Torch is not there and little else is, the table searches, `import mchindex` is light, and the
README's first example runs as printed.
"""

import re
import subprocess
import sys
import time
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import mchindex
from mchindex.datasets.scenes import SceneSource

MOST_BYTES = 300_000_000  # of all packages that `pip install` brings


def seconds(code: str) -> float:
    """The shortest of five runs: a machine may be busy, but a heavy import is never fast."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def installed() -> dict[str, int]:
    """The bytes of each installed package, without those of Python itself."""
    found = {}
    for package in distributions():
        if package.name not in ("pip", "setuptools"):
            files = [Path(str(package.locate_file(file))) for file in package.files or ()]
            found[package.name] = sum(f.stat().st_size for f in files if f.is_file())
    return found


packages = installed()
assert find_spec("torch") is None, "torch is installed"
assert sum(packages.values()) <= MOST_BYTES, packages
table = mchindex.BucketTable(bits=64)
codes = np.random.default_rng(0).integers(0, 256, (1000, 8), dtype=np.uint8)
table.add(np.arange(1000), codes)
hits = table.search(codes[:10], k=3)
assert hits.ids[:, 0].tolist() == list(range(10)), hits.ids
assert hits.distances[:, 0].tolist() == [0] * 10
mch = f"{sys.prefix}/bin/mch"
subprocess.run([mch, "--version"], check=True)
refused = subprocess.run([mch, "methods"], check=False, capture_output=True, text=True)
assert "run pip install 'mchindex[train]'" in refused.stderr, refused.stderr
Path("photos").mkdir()
for i in range(60):
    SceneSource(60, seed=1, size=224).image(i).save(f"photos/{i}.jpg")
example = re.findall(r"```python\n(.*?)```", Path("README.md").read_text("utf-8"), re.DOTALL)[0]
done = subprocess.run([sys.executable, "-c", example], check=True, capture_output=True, text=True)
lines = done.stdout.splitlines()
assert lines[0].startswith("60 added"), done.stdout
assert len(lines) == 6, done.stdout
subprocess.run([mch, "add", "photos"], check=True)  # the one that the example removed
subprocess.run([mch, "search", "photos/7.jpg", "-k", "3", "--out", "hits.png"], check=True)
subprocess.run([mch, "verify"], check=True)
subprocess.run([mch, "models"], check=True)
print(f"mchindex {mchindex.__version__} in {mchindex.__file__} searches.")
total = sum(packages.values()) / 1e6
print(f"{total:.0f} MB installed: {', '.join(sorted(packages))}")
print(f"import: {seconds('import mchindex'):.2f} s, numpy alone {seconds('import numpy'):.2f} s")
