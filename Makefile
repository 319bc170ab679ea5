# `make check` is what must pass before a change is merged; see CONTRIBUTING.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Errors and the output of failed builds are shown, progress and warnings are not.
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
# The pin stands in pyproject.toml alone.
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
SOURCES := $(wildcard bcpformat benchmarks conformance examples fuzz tests)

BENCH_DIR ?= .

.PHONY: bench-ranks help venv demo test check lint types layers fuzz bench layouts clean

help:
	@echo "venv    create $(VENV) with everything development needs"
	@echo "demo    convert real weights, train, save, resume, damage; kill 4 ranks, resume on 2 and 1"
	@echo "test    run all tests"
	@echo "check   lint, types, layers, then all tests"
	@echo "fuzz    feed the readers damaged bytes"
	@echo "bench   measure against the raw speed of this machine"
	@echo "bench-ranks   the same for several processes, beside PyTorch DCP; BENCH_DIR=..."
	@echo "layouts save in every parallel layout, load in every other, update the table in the README"
	@echo "clean   remove caches and build outputs; $(VENV) stays"

venv: $(VENV)/.stamp

# The stamp decides: a venv without one, or older than pyproject.toml, is completed in place.
$(VENV)/.stamp: pyproject.toml
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH)"
	@$(PIP) install '$(TORCH)'
	@echo "installing bcpformat[dev]"
	@$(PIP) install -e '.[dev]'
	@touch $@

demo: venv
	@$(BIN)/python examples/demo.py

test: venv
	@$(BIN)/python -m pytest

check: lint types layers
	@$(MAKE) --no-print-directory test

lint: venv
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

types: venv
	@$(BIN)/mypy

layers: venv
	@$(BIN)/lint-imports --no-logo

fuzz: $(VENV)/.stamp-fuzz
	@$(BIN)/python fuzz/run.py

$(VENV)/.stamp-fuzz: $(VENV)/.stamp
	@echo "installing bcpformat[fuzz]"
	@$(PIP) install -e '.[fuzz]'
	@touch $@

bench-ranks: venv
	@$(BIN)/python benchmarks/ranks.py --dir $(BENCH_DIR)

bench: venv
	@$(BIN)/bcpformat bench

layouts: venv
	@$(BIN)/python -m tests.distributed.layout_table --readme README.md

clean:
	@rm -rf build dist htmlcov .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find $(SOURCES) -type d -name __pycache__ -prune -exec rm -rf {} +
