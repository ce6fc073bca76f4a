# Each command sets up what it needs by itself, once; then it runs.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TORCH_READY := $(VENV)/ready-torch
SITE_READY := $(VENV)/ready-site
JOBS ?= 2

# The tests start some hundred processes: each would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

# The CPU needs PyTorch alone and the few packages that it imports, not the CUDA libraries it asks for.
TORCH := torch==2.13.0
TORCH_NEEDS := filelock typing-extensions sympy mpmath networkx jinja2 MarkupSafe fsspec 'setuptools>=77'

# The values of the core (all but the pairs of all layouts), and four programs from end to end on the engines of the CPU.
QUICK := tests/layout tests/plan --ignore=tests/plan/test_exhaustive.py tests/test_layers.py tests/test_registry.py tests/test_docs.py tests/test_examples.py
# A test that hangs ends; one that a busy machine keeps waiting does not.
PYTEST := $(BIN)/pytest -q -n $(JOBS) --dist worksteal --timeout 600

.PHONY: demo quick matrix test test-torch test-deep lint types lit bytecode unit bench test-gpu bench-gpu array-api docs site clean

demo: $(READY)
	@$(BIN)/python examples/demo.py

quick: $(READY)
	@echo "==> the core, and one program from end to end: pytest"
	@$(PYTEST) -m "not torch" $(QUICK)

# Each version has an environment of its own; those that are not installed are left out.
matrix:
	@for p in $(PYTHONS); do \
		if $$p -c "import venv, ensurepip" 2>/dev/null; then \
			$(MAKE) --no-print-directory quick PYTHON=$$p VENV=build/matrix/$${p##*/} || exit 1; \
		else echo "==> $$p is not installed"; fi; done

# The type checker takes one core: lit has the other, then what prepares for the workers of pytest.
test: lint
	@$(MAKE) --no-print-directory -j 3 types lit bytecode
	@$(MAKE) --no-print-directory unit

lint: $(READY)
	@echo "==> style: ruff check, ruff format --check"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY)
	@echo "==> types: mypy, strict"
	@$(BIN)/mypy

lit: $(READY)
	@echo "==> passes and diagnostics: lit"
	@$(BIN)/lit -s -j $(JOBS) lit

# Each worker of pytest reads all tests: they, and the package, are compiled here once and not by each of them.
bytecode: $(READY)
	@$(BIN)/pytest -qq --collect-only >/dev/null 2>&1 || true  # what cannot be read, unit says

# Many of these wait for time limits, and for ranks that are stopped: one worker more than cores computes meanwhile.
unit: $(READY)
	@echo "==> unit, property and engine tests: pytest"
	@$(PYTEST) -n $$(($(JOBS) + 1)) -m "not torch and not deep"

test-torch: $(TORCH_READY)
	@echo "==> what needs PyTorch: pytest"
	@$(PYTEST) -m "torch and not deep"

test-deep: $(TORCH_READY)
	@echo "==> every test, with all its random examples: pytest"
	@MESHWEAVE_TESTS=deep $(PYTEST)

# CHECKOUT: a folder with data-apis/array-api-tests and its submodule; nothing is fetched.
array-api: $(READY)
	@$(BIN)/python -m tests.array_api $(CHECKOUT)

bench: $(READY)
	@$(BIN)/python -m benchmarks

test-gpu: $(READY)
	@$(BIN)/pytest -q tests/gpu

bench-gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

docs: $(READY)
	@$(BIN)/python docs/generate.py

# The pages with a table of contents and a search; it opens from the disk.
site: $(SITE_READY)
	@echo "==> the documentation as a site: Sphinx"
	@$(BIN)/python docs/website.py
	@echo "open build/site/index.html"

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again when the dependencies change; a set-up that was cut short does not count.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "meshweave needs Python 3.10 or newer, with its venv module" >&2; exit 1; }
	@echo "==> set-up, once: virtual environment $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "==> set-up: installing meshweave and what it needs (about 150 MB to download)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(TORCH_READY): $(READY)
	@echo "==> set-up, once: PyTorch for the CPU"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(TORCH)
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(TORCH_NEEDS)
	@touch $@

$(SITE_READY): $(READY)
	@echo "==> set-up, once: Sphinx"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[site]'
	@touch $@
