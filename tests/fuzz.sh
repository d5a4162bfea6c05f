#!/bin/sh
# Loads forged snapshots for some seconds, under the address and undefined-behaviour sanitizers. Needs
# clang, whose libFuzzer invents them, and does nothing where clang is missing.
# Usage: PYTHON=.venv/bin/python sh tests/fuzz.sh SECONDS
set -eu
if ! command -v clang++ >/dev/null; then
    echo "no clang++ here: snapshots are not fuzzed (Debian: apt-get install clang)"
    exit 0
fi
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/fuzz
python=$(cd "$root" && realpath -s "$PYTHON")
mkdir -p "$build/corpus" "$build/start"
cd "$root"
# Two compilers at a time.
ls tests/cpp/load_fuzzer.cpp cpp/mch/scan.cpp cpp/mch/snapshot.cpp cpp/mch/table*.cpp | xargs -P 2 -I SOURCE sh -c '
    clang++ -std=gnu++20 -O1 -g -Wall -Wextra -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Icpp \
        -c SOURCE -o "$0/$(basename SOURCE .cpp).o"' "$build"
clang++ -fsanitize=fuzzer,address,undefined "$build"/*.o -o "$build/load_fuzzer" -pthread

# The fuzzer starts from a file of format 1 and from small tables of several widths.
cp "$root/tests/fixtures/table-1/table.snapshot" "$build/start/"
(cd "$build" && "$python" - <<'END'
import numpy as np
from mchindex import BucketTable

for bits in (8, 32, 64, 128, 192, 256):
    rng = np.random.default_rng(bits)
    table = BucketTable(bits)
    for n in (30, 7):
        table.add(rng.integers(0, 20, n), rng.integers(0, 256, (n, bits // 8), np.uint8), rng.integers(0, 9, n))
    table.remove([3])
    table.save(f"start/{bits}.snapshot")
END
)
cd "$build"
./load_fuzzer -max_total_time="$1" -rss_limit_mb=4096 -timeout=60 -close_fd_mask=0 -print_final_stats=1 corpus start
