#!/bin/sh
# Compiles the sources with clang and libc++, the compiler and library of macOS, without making a file.
# Does nothing where they are missing.
# Usage: PYTHON=.venv/bin/python sh tests/portable.sh
set -eu
if ! echo '#include <version>' | clang++ -stdlib=libc++ -std=gnu++20 -fsyntax-only -x c++ - 2>/dev/null; then
    echo "no clang++ with libc++ here: the sources are compiled with one compiler only (Debian: apt-get install clang libc++-dev libc++abi-dev)"
    exit 0
fi
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck disable=SC2046  # several words
clang++ -stdlib=libc++ -std=gnu++20 -fsyntax-only -Wall -Wextra -Werror -DMCH_VERSION='""' -I"$root/cpp" \
    $("$PYTHON" -m pybind11 --includes) "$root"/cpp/*.cpp "$root"/cpp/mch/*.cpp "$root"/tests/cpp/*.cpp
