# Two commands start everything, each with all of its own set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# constraints.txt pins what we test with; elsewhere than under its pins any newer release may do.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

EXAMPLES := examples/two_checkpoints.py examples/timm_bridges.py examples/curve_plot.py examples/text_folders.py

# Tools that only the package needs stay out of .venv.
PACKAGING := .venv-package

# Where nothing compiled may be kept, each process compiles this project anew: 8 s for every process of tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests test-slow test-versions examples house docs notebooks package lint types layers setup setup-dev setup-docs clean

demo: $(VENV)/.core ## the main job on the embedded data, half a minute once installed
	$(BIN)/modebridge run

test: $(VENV)/.dev ## lint, types, layers, tests
	$(MAKE) lint layers
	$(MAKE) -j 2 types tests

# Without its cache mypy takes 50 s on one core; beside the tests it fills the time in which they wait for processes.
tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

test-slow: $(VENV)/.dev $(VENV)/.docs ## the tests that take longer than a few seconds
	$(BIN)/python -m pytest -n 2 -m slow

test-versions: ## the tests with the oldest torch that we declare and with the newest one; with CUDA, 20 GB of disk
	$(PYTHON) tools/check_versions.py

examples: $(VENV)/.dev ## the scripts of examples/; the wrapper lets torchvision import beside the CPU build of torch
	set -e; for script in $(EXAMPLES); do echo "== $$script"; $(BIN)/python tests/torchvision_on_cpu.py $$script; done

package: $(PACKAGING)/.tools ## wheel and sdist in dist/, checked; the wheel in a bare environment, the demo from outside
	$(PACKAGING)/bin/python tools/check_package.py

house: $(VENV)/.dev ## the size of the project beside its limits
	$(BIN)/python tools/house.py

docs: $(VENV)/.docs ## the site in build/site: tutorials executed, built strictly, links checked; no network once installed
	$(BIN)/python tools/docs/build.py

notebooks: $(VENV)/.docs ## notebooks/ again, from docs/tutorials
	$(BIN)/python tools/docs/execution.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

setup: $(VENV)/.core
setup-dev: $(VENV)/.dev
setup-docs: $(VENV)/.docs

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "modebridge needs Python 3.11 or newer; set PYTHON=python3.x"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(PACKAGING)/.tools: constraints.txt
	$(PYTHON) -m venv $(PACKAGING)
	$(PACKAGING)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build twine check-wheel-contents
	@touch $@

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing modebridge into $(VENV) (a minute or two) ..."
	$(PIP_INSTALL) -e '.[images,onnx]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing modebridge and its tools into $(VENV) (a minute or two) ..."
	$(PIP_INSTALL) -e '.[dev]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing modebridge and the tools of its site into $(VENV) (a minute or two) ..."
	$(PIP_INSTALL) -e '.[docs]'
	@touch $(VENV)/.core $@

clean:
	rm -rf $(VENV) $(PACKAGING) dist .cache .work/docs build/site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
