# make demo and make test set everything up themselves, once; then they run.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
JOBS ?= 2

.PHONY: demo test lint types lit unit bench test-gpu bench-gpu docs clean

demo: $(READY)
	@$(BIN)/python examples/demo.py

test: lint types lit unit

lint: $(READY)
	@echo "==> style: ruff check, ruff format --check"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY)
	@echo "==> types: mypy, strict on the pure core"
	@$(BIN)/mypy

lit: $(READY)
	@echo "==> passes and diagnostics: lit"
	@$(BIN)/lit -s -j $(JOBS) lit

unit: $(READY)
	@echo "==> unit, property and engine tests: pytest"
	@$(BIN)/pytest -q -n $(JOBS)

bench: $(READY)
	@$(BIN)/python -m benchmarks

test-gpu: $(READY)
	@$(BIN)/pytest -q tests/gpu

bench-gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

docs: $(READY)
	@$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when the dependencies change; a set-up that was cut short is not taken for a whole one.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "meshweave needs Python 3.10 or newer, with its venv module" >&2; exit 1; }
	@echo "==> set-up, once: virtual environment $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "==> set-up: installing meshweave and what it needs (about 150 MB to download)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@
