# Every habit of the project. `make` lists them; `make demo` and `make test` need nothing but Python 3.11 or newer.

BIN := .venv/bin
FILES ?= $(wildcard examples/*.jsonl)
TESTS ?= tests
CUTS ?= 1000000
INPUTS ?= 200000
CASES ?= 1000
EXAMPLES ?= 30
ONLY ?=
PROCESSES ?= $(shell nproc 2>/dev/null || echo 1)
# The number of tests that run at once: two more than there are cores, because tests of services also wait, for starts, timers and disks.
# On two cores, 4 at once took 638 s and left 9% of the processors idle; 3 at once took 702 s.
# Files go in the order that tests/conftest.py gives them: those that wait beside those that compute.
TESTERS ?= $(shell echo $$(($(PROCESSES) + 2)))
COOLDOWN ?= 1 week
UPGRADE ?=
KILLS ?= 1000
MINUTES ?= 120
SEED ?=
FIGURES ?= build/chaos.jsonl
HOSTS ?=
MUTANTS ?= 300
MUTANTS_ENV := build/mutants/env

.DEFAULT_GOAL := help
.PHONY: help setup demo test prove chaos fuzz house costs mutants hosts clients containers docs release up fmt lint types layers bench lock ci clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: ## make .venv with everything locked in it (the other targets do it when needed)
	@scripts/setup

demo: setup ## replay recorded conversations through bus, worker and query, and show what happened (FILES=...)
	@$(BIN)/turnfold demo $(FILES)

# Byte code is kept even where Python is told not to: each tester spent ten seconds on rewriting the assertions of all files and plugins.
test: setup ## run all tests but those of images, crowds of workers and hosts, and the benchmarks, on all cores (TESTS=tests/unit for a part, TESTERS=1 for one at a time)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(TESTS)

prove: setup ## cut a million windows and check each against the laws (CUTS=100000 PROCESSES=2; PROVE_DATA names conversations)
	@$(BIN)/python -m tests.window_check --cuts $(CUTS) --processes $(PROCESSES)

chaos: setup ## kill so many processes of whole systems, beside a listener that replies to everything, go on from FIGURES, and check every law (KILLS=1000 MINUTES=120 SEED=...)
	@$(BIN)/python -m tests.chaos --kills $(KILLS) --minutes $(MINUTES) --figures $(FIGURES) $(if $(SEED),--seed $(SEED))

fuzz: setup ## hand mutated bytes to every reader, to HTTP and to the bus (INPUTS=200000 EXAMPLES=30 SEED=1 PROCESSES=2 ONLY=event)
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(or $(SEED),1) --processes $(PROCESSES) $(if $(ONLY),--only $(ONLY))
	@$(if $(ONLY),:,FUZZ_SEED=$(or $(SEED),1) FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q --timeout 1200 tests/services/query/test_hostile_requests.py)

mutants: setup ## change committed code in random places and count what no test reports, going on where it ended (MUTANTS=300 SEED=1 PROCESSES=2)
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(MUTANTS_ENV)
	@$(BIN)/uv pip sync --quiet --python $(MUTANTS_ENV)/bin/python --require-hashes requirements/dev.lock requirements/mutants.lock
	@$(BIN)/uv pip install --quiet --python $(MUTANTS_ENV)/bin/python --no-deps --no-build-isolation --editable .
	@$(MUTANTS_ENV)/bin/python -m tests.mutants --mutants $(MUTANTS) --seed $(or $(SEED),1) --processes $(PROCESSES)

hosts: setup ## run the tests of the integrations, each with its framework in its own environment (HOSTS=openai-agents NEWEST=1 ignores the locks)
	@scripts/hosts $(HOSTS)

house: setup ## print the size and shape of the source beside their targets, and what one event passes
	@$(BIN)/python -m tests.house; met=$$?; $(BIN)/python -m tests.house.journey && exit $$met

costs: setup ## measure processor time over doubled sizes of generated texts, queries, events and sessions (CASES=1000 SEED=1)
	@$(BIN)/python -m tests.costs --cases $(CASES) --seed $(or $(SEED),1)

clients: setup ## generate a Python and a TypeScript client from OpenAPI, and run the journey of the README with each
	@scripts/clients

containers: setup ## build the image, run all of compose.yaml in containers: restarts, backup, upgrade (docker, or podman as root; KEEP=1 keeps podman's images)
	@scripts/containers

docs: setup ## build the documentation site into build/site, and check its links and that it loads nothing from elsewhere
	@scripts/site

release: ## write wheel, sdist, hashes, list of dependencies and release notes to dist; upload nothing
	@scripts/release

up: setup ## run the whole system on this machine: NATS, SQLite, worker and query
	@$(BIN)/turnfold up

fmt: setup ## put the code into its form, and mend what can be mended by rule
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lint: setup ## check form and shape of the code, and that the locks name no index
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m pytest -q tests/house
	@if grep -n '://' requirements/*.lock requirements/hosts/*; then echo 'lint: a lock names a host; run make lock' >&2; exit 1; fi

types: setup ## check the types, with mypy and with pyright
	@$(BIN)/mypy & mypy=$$!; PYRIGHT_PYTHON_IGNORE_WARNINGS=1 PYRIGHT_PYTHON_GLOBAL_NODE=0 $(BIN)/pyright; pyright=$$?; wait $$mypy && exit $$pyright

layers: setup ## check who imports whom
	@$(BIN)/lint-imports

bench: setup ## count and time what things cost, in 45 minutes (`python -m tests.benchmarks NAME` for a part)
	@$(BIN)/python -m tests.benchmarks

lock: setup ## write requirements/*.lock anew from pyproject.toml, nothing younger than COOLDOWN (UPGRADE=--upgrade for newer versions)
	@COOLDOWN='$(COOLDOWN)' scripts/lock $(UPGRADE)

ci: ## everything above that can fail, in the order in which it fails fastest
	@.ci/run

clean: ## remove what the tools left, .venv included; conversations in .turnfold stay
	@rm -rf .venv .hosts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
