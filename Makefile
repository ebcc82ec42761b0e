# The verbs are the same on a desk and in CI. All that they make is in .venv, .venv-* (of .ci/run) and build, which
# `make clean` removes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
SOURCES := src tests typing_tests examples benchmarks scripts conftest.py mkdocs_hooks.py

# The pyright wheel brings its JavaScript and the nodejs extra brings Node: nothing is fetched when it runs.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/build/pyright

# Containers set this often: each of the thousand programs that tests start would compile Ferrule, in 0.2 s.
unexport PYTHONDONTWRITEBYTECODE

# How many parts of the checks and the tests run at once. Each part is a process of its own, and make (from 4.0 on)
# shows what it said when it has ended. The longest come first. Tests of programs wait for these a third of their time:
# four parts keep two cores busy.
JOBS ?= 4
PARTS := tests-models tests-web tests-programs tests-journal tests-testing tests-rest tests-kernel tests-providers tests-core
# One for each framework that there is an adapter for, in an environment of its own; adapter-remote is DBOS and Ray,
# adapter-telemetry the exporters of OpenTelemetry and Logfire.
PINNED := $(wildcard tests/remote/engines/pins/*.txt tests/adapters/frameworks/pins/*.txt tests/telemetry/pins/*.txt)
ADAPTERS := $(addprefix adapter-,$(basename $(notdir $(PINNED))))
FAST := tests-kernel tests-providers tests-core tests-testing tests-rest
PARALLEL = $(MAKE) --no-print-directory -j $(JOBS) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: demo inspect test test-all rest core test-next soak soak-mixed explore flaky needs quick check lint types types-users types-pages pages-extras tests $(PARTS) adapters $(ADAPTERS) bench picture docs format clean

TASK := "Explore this repository and note down what the library is for."
REAL := anthropic:claude-sonnet-5-5

# Where the tools of the demo cannot reach it.
CALLS := $(or $(XDG_STATE_HOME),$(HOME)/.local/state)/ferrule/demo.db

demo: $(VENV)/.cli
	@mkdir -p -m 700 "$(dir $(CALLS))"
	@$(BIN)/ferrule run $(TASK) --tools ferrule.tools.files --model scripted:examples/demo/steps.py --journal "$(CALLS)"
	@echo
	@echo 'Each call is in the journal, with who decided what by which rule:'
	@echo '$(BIN)/ferrule log "$(CALLS)"'
	@echo
	@echo 'The same on a real model, with ANTHROPIC_API_KEY set and the SDK there ($(BIN)/pip install -e ".[anthropic]"):'
	@echo '$(BIN)/ferrule run $(TASK) --tools ferrule.tools.files --model $(REAL)'

# The page with the tools of the demo, and the calls of its journal: the demo runs first if there is none. Nobody is asked
# then, so its edit is denied.
inspect: $(VENV)/.web
	@mkdir -p -m 700 "$(dir $(CALLS))"
	@test -e "$(CALLS)" || $(BIN)/ferrule run $(TASK) --tools ferrule.tools.files --model scripted:examples/demo/steps.py --journal "$(CALLS)" </dev/null
	@$(BIN)/ferrule inspect ferrule.tools.files --journal "$(CALLS)"

# All that a change needs, in under four minutes. What is marked as large is left out, and named at the end of each part.
test: needs
	@$(PARALLEL) types $(PARTS) lint types-users types-pages PYTEST='-m "not large"'

# Everything: `make test`, then what it left out, the adapters to frameworks, the pages with their extras alone, and the
# properties again with four times as many examples.
test-all: test rest

rest: export FERRULE_TESTS = all
rest: $(VENV)/.dev
	@$(PARALLEL) $(PARTS) $(ADAPTERS) pages-extras PYTEST='-m "large or hypothesis"'

# What may be different under another Python: CI runs it on a second one.
core: $(VENV)/.dev
	@$(PARALLEL) tests-kernel tests-journal tests-core types PYTEST='-m "not large"'

# Tests that need no operating system, on the newest CPython that npm has. It says so if that cannot be had.
test-next: $(VENV)/.dev
	@$(BIN)/python scripts/next_python.py

# Several programs at once that make the same calls and are killed at any step, for so many rounds, about five a second;
# and workers of DBOS that are killed so many times at each point of a call, in three seconds each.
ROUNDS ?= 1000
KILLS ?= 100
soak: $(VENV)/.dev
	$(BIN)/python tests/journal/soak.py $(ROUNDS)
	FERRULE_KILLS=$(KILLS) $(BIN)/python scripts/frameworks.py remote -k crashes

# A mixture of calls that uses every part of Ferrule, with faults: memory, threads, descriptors and tasks, for an hour.
SECONDS ?= 3600
soak-mixed: $(VENV)/.dev
	$(BIN)/python tests/soak/run.py $(SECONDS)

# The properties, with new examples: what it finds becomes an `@example`. The other verbs always try the same ones.
explore: export FERRULE_TESTS = explore
explore: $(VENV)/.dev
	@$(PARALLEL) $(PARTS) PYTEST='-m hypothesis'

# The tests that a change touches, ten times on a busy machine: FLAKY="--since HEAD~3", "--all", "tests/journal".
FLAKY ?=
flaky: $(VENV)/.dev
	@$(BIN)/python scripts/flaky.py $(FLAKY)

# What tests need and pip does not install, such as a browser: found, installed, or said.
needs: $(VENV)/.dev
	@$(BIN)/python scripts/needs.py

# Lint, types and the tests that start no program and no SDK, in under a minute; the others are named in CONTRIBUTING.md.
quick: $(VENV)/.dev
	@$(PARALLEL) types $(FAST) lint types-users PYTEST='-m "not slow and not large"'

check: lint types types-users types-pages

lint: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/.dev
	$(BIN)/mypy

types-users: $(VENV)/.dev
	$(BIN)/pyright --pythonpath $(BIN)/python

# The programs of the pages. mypy reads what `types` has checked from its cache.
types-pages: types
	$(BIN)/python scripts/page_types.py

# The programs of the pages, each with only the extras that its page names, in environments that are made once.
pages-extras: $(VENV)/.dev
	@$(BIN)/python scripts/page_extras.py

tests: $(VENV)/.dev
	@$(PARALLEL) $(PARTS) PYTEST='-m "not large"'

tests-kernel: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/kernel

# FERRULE_CRASHES=100 tries each point at which a call may be killed a hundred times: CI does, on the newest Python.
tests-journal: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/journal

tests-core: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/arguments tests/definition tests/values

tests-programs: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/cli tests/examples

tests-web: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/web

tests-models: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/models tests/sources tests/serve tests/peers

tests-providers: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/providers

tests-testing: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) tests/testing tests/middleware tests/limits

adapters: $(VENV)/.dev
	@$(PARALLEL) $(ADAPTERS)

$(ADAPTERS): adapter-%: $(VENV)/.dev
	$(BIN)/python scripts/frameworks.py $*

tests-rest: $(VENV)/.dev
	$(BIN)/pytest -q $(PYTEST) $(addprefix --ignore=tests/,kernel journal providers cli web models sources serve peers examples arguments definition values testing middleware limits)

# What Ferrule costs, beside its peers, with the goals; ROWS="import journal" chooses some. Peers are installed once.
ROWS ?=
bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/table.py $(ROWS)

# docs/assets/terminal.svg, the moving picture of README.md, from a real run in a terminal; and the page of ferrule inspect.
picture: $(VENV)/.dev
	@$(BIN)/python scripts/picture/picture.py
	@$(BIN)/python scripts/page_pictures.py

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'The site is in build/site: open build/site/index.html (its search needs a server: $(BIN)/python -m http.server -d build/site)'

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests typing_tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ferrule needs Python 3.11 or newer, and this is " \
		+ sys.version.split()[0] + ": try make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.cli: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Ferrule into $(VENV) …" >&2
	@$(PIP) -e '.[cli]' || { echo "pip could not install Ferrule; its own words are above" >&2; exit 1; }
	@touch $@

$(VENV)/.web: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Ferrule and its page into $(VENV) …" >&2
	@$(PIP) -e '.[cli,web]' || { echo "pip could not install Ferrule; its own words are above" >&2; exit 1; }
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the docs are built with into $(VENV) …" >&2
	@$(PIP) -e '.[docs]' || { echo "pip could not install the tools for the docs; its own words are above" >&2; exit 1; }
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Ferrule and its tools for development into $(VENV) …" >&2
	@$(PIP) -e '.[dev]' || { echo "pip could not install the development tools; its own words are above" >&2; exit 1; }
	@touch $@ $(VENV)/.cli $(VENV)/.docs $(VENV)/.web
