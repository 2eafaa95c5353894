# Every target says what it does: 'make help'.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
FIRST = $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
PYTHON ?= $(or $(FIRST),python3)
BIN := .venv/bin
SEEDS ?= 2
MINUTES ?= 60
JOBS ?= 2
SEED ?= 1
# Tests of the stack run one after the other in the first process, all others beside them in the second.
PARALLEL := --instafail -n 2 --dist loadgroup --no-loadscope-reorder
PYTEST_ARGS ?=
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock'

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-tools lock up down status demo demo-elasticity demo-fleet demo-transactions test test-all test-long test-faults test-nemesis compose-up compose-down bench dashboards lint format

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: ## install the Python environment and build the pinned servers (once; quick the second time)
	@$(PYTHON) include/stack/install.py

setup-test: ## what the tests need on top: development tools and a browser
	@$(PYTHON) include/stack/install.py --tools --browser

setup-tools:
	@$(PYTHON) include/stack/install.py --tools

lock: setup ## write the two locks from requirements.txt and requirements-dev.txt, with the versions that they hold now
	@$(LOCK) requirements.txt -o requirements.lock
	@$(LOCK) requirements-dev.txt -c requirements.lock -o requirements-dev.lock

up: setup ## start the local stack and wait until it is ready
	@$(BIN)/python -m stack up

down: ## stop the local stack; its data stays
	@$(BIN)/python -m stack down

status: ## show what of the local stack runs, and the addresses
	@$(BIN)/python -m stack status

demo: setup ## the whole story: stack, job v1 under load, upgrades to v2 and v3, recount
	@$(BIN)/streamops demo

demo-elasticity: setup ## the cluster under a running job: shut down, start, grow, lose a worker, shrink, recount
	@$(BIN)/streamops demo elasticity

demo-fleet: setup ## vehicles on a map: nodes join and die, a logging step comes and goes, shared code changes, recount
	@$(BIN)/streamops demo fleet

demo-transactions: setup ## declared jobs: topic, version 1, snapshot, version 2 from it, each transaction once, clean-up
	@$(BIN)/streamops demo transactions

test: setup-test ## the tests of every change, one story on the real servers among them
	@$(BIN)/python -m pytest -m "not full and not long" --durations 20 --durations-to=build/durations/test.tsv $(PARALLEL) $(PYTEST_ARGS)

test-all: setup-test ## all the other tests: each kill point, each fault, each runbook on the real servers
	@$(BIN)/python -m pytest -m "full and not long" --durations 20 --durations-to=build/durations/test-all.tsv $(PARALLEL) $(PYTEST_ARGS)

test-long: setup-test ## what is outside continuous integration; docs/testing.md says which tests, and why
	@$(BIN)/python -m pytest -m "long" --durations-to=build/durations/test-long.tsv $(PARALLEL) $(PYTEST_ARGS)

test-faults: setup-test ## every test, those that break something with SEEDS=n seeds
	@$(BIN)/python -m pytest -m "" --seeds $(SEEDS) $(PARALLEL) $(PYTEST_ARGS)

test-nemesis: setup-test ## random operations beside random faults, for MINUTES=n, drawn from SEED=n; build/nemesis tells
	@$(BIN)/python -m pytest tests/faults/test_nemesis_stack.py --nemesis-minutes $(MINUTES) --nemesis-jobs $(JOBS) --seed $(SEED) -s $(PYTEST_ARGS)

# The containers bring their own servers: of the set-up they need the Python environment alone.
compose-up: ## start the same stack in containers (Docker), and wait until it is ready
	@$(PYTHON) include/stack/install.py --parts python
	@PYTHONPATH=include $(BIN)/python -m stack.compose.host up

compose-down: ## stop the containers; their volumes stay
	@$(PYTHON) include/stack/install.py --parts python
	@PYTHONPATH=include $(BIN)/python -m stack.compose.host down

bench: setup ## measure rate, lateness, memory, checks, the gap of an upgrade and the cluster; writes docs/performance.md
	@$(BIN)/python -m benchmarks

dashboards: setup-tools ## write Grafana's dashboards again, after a change of include/stack/compose/dashboards.py
	@$(BIN)/python -m stack.compose.dashboards

lint: setup-tools ## ruff, mypy, and the walls between the packages
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache

format: setup-tools ## let ruff format and sort imports
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
