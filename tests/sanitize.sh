#!/bin/sh
# Builds the extension with sanitizers and runs tests on it: sanitize.sh SANITIZERS TESTS...
set -eu
sanitizers=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/sanitize-$(echo "$sanitizers" | tr , -)
python=$(cd "$root" && realpath -s "$PYTHON")
cmake=$(command -v cmake || echo "$(dirname "$python")/cmake")

"$cmake" -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Debug -DMCH_SANITIZE="$sanitizers" \
    -DSKBUILD_PROJECT_VERSION="$("$python" -c 'from importlib.metadata import version; print(version("mchindex"))')" \
    -DPython_EXECUTABLE="$python" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >/dev/null
"$cmake" --build "$build" --parallel 2 >/dev/null
mkdir -p "$build/site/mchindex"
cp "$root"/mchindex/*.py "$build/site/mchindex/"
cp "$build"/_core*.so "$build/site/mchindex/"

# Python itself is not built with a sanitizer, so its runtime comes first, and with it the C++ library
# whose exceptions it watches; leaks of an interpreter that exits are not ours.
case $sanitizers in
    thread) library=libtsan.so ;;
    *) library=libasan.so ;;
esac
cd "$root"
LD_PRELOAD="$(c++ -print-file-name=$library) $(c++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
    TSAN_OPTIONS=halt_on_error=1 PYTHONPATH="$build/site" \
    "$python" -P -m pytest -q -p no:cacheprovider -m "not slow" "$@"
