#!/bin/sh
# Builds the extension and the tests in C++ with sanitizers, and runs tests with them.
# Usage: PYTHON=.venv/bin/python sh tests/sanitize.sh SANITIZERS PYTEST_ARGUMENTS...
# for example: sh tests/sanitize.sh address,undefined tests/engine -k large
set -eu
sanitizers=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/sanitize-$(echo "$sanitizers" | tr , -)
python=$(cd "$root" && realpath -s "$PYTHON")
cmake=$(command -v cmake || echo "$(dirname "$python")/cmake")

"$cmake" -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Debug -DMCH_SANITIZE="$sanitizers" -DMCH_TESTS=ON \
    -DSKBUILD_PROJECT_VERSION="$("$python" -c 'from importlib.metadata import version; print(version("mchindex"))')" \
    -DPython_EXECUTABLE="$python" -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >/dev/null
"$cmake" --build "$build" --parallel 2 >/dev/null
"$build/engine_test"
# A copy of the whole package, with this extension in place of an installed one.
rm -rf "$build/site"
mkdir "$build/site"
cp -R "$root/mchindex" "$build/site/"
rm -f "$build"/site/mchindex/_core*.so
cp "$build"/_core*.so "$build/site/mchindex/"

# Python itself is not built with a sanitizer, so the sanitizer's runtime is preloaded, together with
# the C++ library whose exceptions it intercepts. Leaks of the exiting interpreter are not ours.
case $sanitizers in
    thread) library=libtsan.so ;;
    *) library=libasan.so ;;
esac
cd "$root"
LD_PRELOAD="$(c++ -print-file-name=$library) $(c++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
    TSAN_OPTIONS=halt_on_error=1:die_after_fork=0 PYTHONPATH="$build/site" \
    "$python" -P -m pytest -q -p no:cacheprovider -m "not slow" "$@"
