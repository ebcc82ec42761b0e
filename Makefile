# The verbs are the same on a desk and in CI. All that they make is in .venv and build, which `make clean` removes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
SOURCES := src tests typing_tests examples benchmarks conftest.py

# The pyright wheel brings its JavaScript and the nodejs extra brings Node: nothing is fetched when it runs.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/build/pyright

.PHONY: demo test check tests bench format clean

TASK := "Explore this repository and note down what the library is for."
REAL := anthropic:claude-sonnet-5-5

demo: $(VENV)/.cli
	@$(BIN)/ferrule run $(TASK) --tools ferrule.tools.files --model scripted:examples/demo/steps.py
	@echo
	@echo 'The same on a real model, with ANTHROPIC_API_KEY set and the SDK there ($(BIN)/pip install -e ".[anthropic]"):'
	@echo '$(BIN)/ferrule run $(TASK) --tools ferrule.tools.files --model $(REAL)'

# Everything, in full size: what is large or has many examples is smaller in the everyday `make tests`.
test: export FERRULE_TESTS = all
test: check tests

check: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy typing_tests
	$(BIN)/pyright --pythonpath $(BIN)/python

tests: $(VENV)/.dev
	$(BIN)/pytest -q

bench: $(VENV)/.dev
	@for script in $(filter-out benchmarks/measure.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests typing_tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ferrule needs Python 3.11 or newer, and this is " \
		+ sys.version.split()[0] + ": try make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.cli: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Ferrule into $(VENV) …" >&2
	@$(PIP) -e '.[cli]' || { echo "pip could not install Ferrule; its own words are above" >&2; exit 1; }
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Ferrule and its tools for development into $(VENV) …" >&2
	@$(PIP) -e '.[dev]' || { echo "pip could not install the development tools; its own words are above" >&2; exit 1; }
	@touch $@ $(VENV)/.cli
