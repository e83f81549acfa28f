# The front door. `make` alone lists what there is.
# Needs Python 3.11 or newer and make; everything else is brought into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
ARGS ?=
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-integration e2e e2e-compose lint fmt reference docs \
        clean simulate simulate-mutants bench-planner bench-gateway bench-affinity

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / {n = split($$1, names, " "); for (i = 1; i <= n; i++) printf "  make %-18s %s\n", names[i], $$2}' $(MAKEFILE_LIST) | sort

setup: $(STAMP) ## make .venv with everything in it (the other targets do this by themselves)

$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "llmgw needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.11" % sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv sync --frozen --quiet --inexact --all-groups --compile-bytecode
	@touch $(STAMP)

demo: $(STAMP) ## run everything on this machine with a real engine and model (ARGS="--once", "--simulate 3x8xH200")
	@$(BIN)/llmgw demo $(ARGS)

test: $(STAMP) ## all tests: unit, simulation, integration (real processes), end to end (real engine)
	@rm -f .coverage .coverage.*
	@$(PYTEST) tests --cov --cov-report= $(ARGS)
	@$(BIN)/coverage report --skip-covered --sort=cover | tail -n 25

test-unit: $(STAMP) ## the quick ones only
	@$(PYTEST) tests/unit $(ARGS)

test-integration: $(STAMP) ## real server and agent processes with the simulated engine
	@$(PYTEST) tests/integration $(ARGS)

e2e: $(STAMP) ## the real llama.cpp engine with a real model
	@$(PYTEST) tests/e2e $(ARGS)

e2e-compose: $(STAMP) ## build the images, bring the composed stack up, ask it, restart the server, ask again
	@$(BIN)/python -m tests.e2e.compose.run $(ARGS)

lint: $(STAMP) ## what CI checks of the code: format, rules, types, import contracts, layout
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PYTEST) -q -p no:randomly tests/unit/test_layout.py

fmt: $(STAMP) ## format the code and mend what can be mended by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

reference: $(STAMP) ## write docs/reference/ anew from the code
	@$(BIN)/python -m docs.gen.write

docs: $(STAMP) ## build the documentation into site/
	@$(BIN)/mkdocs build --strict --quiet --site-dir site

simulate simulate-mutants bench-planner: ## the fleet simulation and its benchmark (not there yet)
	@echo "make $@ comes with the whole reconciler; see README.md, \"What is there\"" >&2; exit 2

bench-gateway bench-affinity: ## gateway benchmarks beside other routers (not there yet)
	@echo "make $@ comes with the gateway's hot path; see README.md, \"What is there\"" >&2; exit 2

clean: ## remove what was made here (.venv, caches, demo state)
	@rm -rf $(VENV) .state site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
