# Each target sets up what it needs: a virtual environment in .venv, the build, and, where a machine
# has no compiler, Debian's.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := $(shell find cpp mchindex -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.pyi' -o -name '*.html' -o -path '*/graphs/*' -type f -o -path '*/shipped/*' -type f -o -path '*/server/page/*' -type f) CMakeLists.txt pyproject.toml

# Pytest runs files of tests side by side.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadfile

.PHONY: demo test slow check docs format sanitize sanitize-all bench wheel clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed $(VENV)/plot $(VENV)/train
	$(BIN)/mch demo --out demo

test: $(VENV)/installed $(VENV)/test $(VENV)/train $(VENV)/browser
	$(BIN)/pytest tests -m "not slow" $(SIDE_BY_SIDE)

slow: $(VENV)/installed $(VENV)/test $(VENV)/train $(VENV)/browser
	$(BIN)/pytest tests -m slow

check: $(VENV)/installed $(VENV)/test $(VENV)/train $(VENV)/bench $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror cpp/*.cpp cpp/*.h cpp/mch/*.cpp cpp/mch/*.h tests/cpp/*.cpp
	PYTHON=$(BIN)/python sh tests/portable.sh
	$(BIN)/mypy mchindex tests bench
	$(BIN)/lint-imports
	$(BIN)/stubtest mchindex._core --mypy-config-file pyproject.toml --allowlist tests/stubtest.allow
	$(BIN)/python bench/readme.py --check
	$(BIN)/python bench/hits.py --check
	$(BIN)/python bench/pictures.py --check
	$(BIN)/python tests/spelling.py
	$(BIN)/python tests/licences.py

# The documentation site, in site/. The build fails if a link or an anchor leads nowhere, or if a page loads anything
# from another host.
docs: $(VENV)/installed $(VENV)/docs $(VENV)/train
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i cpp/*.cpp cpp/*.h cpp/mch/*.cpp cpp/mch/*.h tests/cpp/*.cpp

# The engine's tests under the address and undefined-behaviour sanitizers, and some seconds of forged snapshots.
FUZZ ?= 15
sanitize: $(VENV)/installed $(VENV)/test $(VENV)/dev
	PYTHON=$(BIN)/python sh tests/sanitize.sh address,undefined tests/engine $(SIDE_BY_SIDE)
	PYTHON=$(BIN)/python sh tests/fuzz.sh $(FUZZ)

# The whole suite under them, then what runs in threads under the thread sanitizer.
sanitize-all: $(VENV)/installed $(VENV)/test $(VENV)/train $(VENV)/dev
	PYTHON=$(BIN)/python sh tests/sanitize.sh address,undefined tests
	PYTHON=$(BIN)/python sh tests/sanitize.sh thread tests/engine/test_concurrency.py tests/engine/test_updates.py

bench: $(VENV)/installed $(VENV)/bench
	$(BIN)/python bench/search.py --suite

wheel: $(VENV)/dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl

clean:
	rm -rf $(VENV) build dist site

$(VENV)/python:
	@command -v c++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++; }
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv python3-dev && $(PYTHON) -m venv $(VENV); }
	touch $@

# The tests of the page run in Debian's Chromium; where there is neither, they are skipped.
$(VENV)/browser: $(VENV)/python
	@command -v chromium >/dev/null || ! command -v apt-get >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	touch $@

# PACKAGE=dist/NAME.whl installs a wheel that has been built instead of building it again.
PACKAGE ?= .
$(VENV)/installed: $(VENV)/python $(SOURCES)
	$(PIP) $(PACKAGE)
	touch $@

$(VENV)/test $(VENV)/train $(VENV)/bench $(VENV)/dev $(VENV)/docs $(VENV)/plot: $(VENV)/python pyproject.toml
	$(BIN)/python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(notdir $@)']))" > $@.txt
	$(PIP) -r $@.txt
	touch $@
