# make demo   the package at work on real and made data (sets itself up the first time)
# make test   formatters, types and tests; what CI runs
# make help   the rest
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   := $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$n)
CUDA   := find src -name '*.cu' -o -name '*.cuh'
# One worker more than cores: a sixth of the time of the tests is waiting for other processes, sockets and disks.
WORKERS := $(shell echo $$(( $(JOBS) + 1 )))
# Bytecode is written also where the environment says otherwise: else each process compiles all that it imports, and each
# worker, each time, rewrites the asserts of all tests, in 10 s of processor time.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --durations=15

.PHONY: help demo test test-all test-lowest test-gpu soak lint types unit format wheel clean

help:
	@echo "make demo      run 'skysieve demo'"
	@echo "make test      ruff, pyrefly and the tests that take minutes"
	@echo "make test-all  the slow tests, every build of the CUDA files and every architecture too"
	@echo "make test-lowest  the tests with the lowest versions that pyproject.toml allows, in an environment of their own"
	@echo "make test-gpu  the tests that need a GPU (and CuPy); writes tests/gpu_record.json"
	@echo "make soak      an hour of the live pipeline with everything going wrong"
	@echo "make format    put the sources into form"
	@echo "make wheel     build dist/*.whl"
	@echo "make clean     remove what these made"

demo: $(VENV)/.runs
	$(BIN)/skysieve demo --overwrite

test: lint types unit

lint: $(VENV)/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(CUDA) | xargs $(BIN)/clang-format --dry-run --Werror

types: $(VENV)/.tests
	$(BIN)/pyrefly check --summary=none --python-interpreter-path $(BIN)/python

unit: $(VENV)/.tests
	$(PYTEST) -m "not slow"

test-all: lint types $(VENV)/.tests
	$(PYTEST)

# The judges of other tests (healpy, lalsuite, ...) need newer packages: their tests skip, or are not listed here.
LOWEST := build/lowest
LOWEST_TESTS := tests/core tests/periodogram tests/conformance/test_periodogram.py tests/conformance/test_fstat.py \
  tests/conformance/test_dedispersion.py tests/dedispersion/test_cli.py tests/dedispersion/test_search.py \
  tests/fstat/test_batch.py tests/fstat/test_cli.py tests/sphere/test_cli.py tests/sphere/test_kernels.py tests/test_house.py

test-lowest: $(VENV)/.made
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python tests/lowest_versions.py > $(LOWEST)/versions.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r $(LOWEST)/versions.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(LOWEST)/bin/python -m pip check
	for command in period "fstat map" "fstat search" "dedisp search" "dedisp stream" smooth info; do \
	  $(LOWEST)/bin/skysieve $$command --help >/dev/null || exit 1; done
	SKYSIEVE_CACHE_DIR=$(LOWEST)/cache $(LOWEST)/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow" $(LOWEST_TESTS)

test-gpu: $(VENV)/.tests
	$(BIN)/python -m pytest -q -m gpu

soak: $(VENV)/.tests
	$(BIN)/python -m benchmarks.soak --seconds 3600

format: $(VENV)/.tests
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(CUDA) | xargs $(BIN)/clang-format -i

wheel: $(VENV)/.tests
	$(BIN)/hatchling build -t wheel

clean:
	rm -rf $(VENV) build dist demo-output .pytest_cache .ruff_cache .hypothesis

# Set-up. A stamp is newer than pyproject.toml when its set of packages is in place; with the packages for
# the tests there is nothing left to install for the demo.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing. On Debian: apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) -V) is too old: 3.11 or later is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv or ensurepip is missing. On Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runs: pyproject.toml | $(VENV)/.made
	@[ $(VENV)/.tests -nt pyproject.toml ] || $(call install,.[plot$(comma)tables])
	@touch $@

$(VENV)/.tests: pyproject.toml | $(VENV)/.made
	@$(call install,.[test] ruff pyrefly==1.5.0 clang-format==23.1.5)
	@touch $@

comma := ,
# pip 23, which Python 3.11 brings, takes twice as long as a new one.  `--no-compile` saves as much again: Python writes
# the bytecode of what is imported, a tenth of what pip would compile.
install = { echo "Installing the packages; the first time takes a minute or more (some 300 MB)." && \
  $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip && \
  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e $(1); } || \
  { echo "pip could not install the packages: is the package index reachable (pip config list, proxy)?" >&2; exit 1; }
