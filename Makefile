# The tasks of the project; `make` lists them. `make demo` and `make test` need only Python 3.11 or newer.

BIN := .venv/bin
FILES ?= $(wildcard examples/*.jsonl)
TESTS ?= tests
CUTS ?= 1000000
INPUTS ?= 200000
CASES ?= 1000
EXAMPLES ?= 30
ONLY ?=
PROCESSES ?= $(shell nproc 2>/dev/null || echo 1)
# Concurrent test processes: two more than cores, because tests of services also wait for starts, timers and disks.
# On two cores, 4 took 638 s and left 9% of the processor time idle; 3 took 702 s.
# tests/conftest.py orders the files, so that those that wait run beside those that compute.
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

setup: ## create .venv with the locked packages (other targets do this when needed)
	@scripts/setup

demo: setup ## start the whole system, replay conversations, show the results and stop it (FILES=...)
	@$(BIN)/turnfold demo $(FILES)

# Byte code is kept whatever the environment says: otherwise each process rewrites the assertions of all files and plugins, for ten seconds.
test: setup ## run the tests on all cores, except images, many workers, hosts and benchmarks (TESTS=tests/unit, TESTERS=1)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(TESTS)

prove: setup ## build a million windows and check each against the laws (CUTS=100000 PROCESSES=2 SEED=1; PROVE_DATA names conversations)
	@$(BIN)/python -m tests.window_check --cuts $(CUTS) --processes $(PROCESSES) $(if $(SEED),--seed $(SEED))

chaos: setup ## kill KILLS processes of whole systems and check the laws; continues the run in FIGURES (KILLS=1000 MINUTES=120 SEED=...)
	@$(BIN)/python -m tests.chaos --kills $(KILLS) --minutes $(MINUTES) --figures $(FIGURES) $(if $(SEED),--seed $(SEED))

fuzz: setup ## feed mutated bytes to every reader, HTTP operation and subject (INPUTS=200000 EXAMPLES=30 SEED=1 PROCESSES=2 ONLY=event)
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(or $(SEED),1) --processes $(PROCESSES) $(if $(ONLY),--only $(ONLY))
	@$(if $(ONLY),:,FUZZ_SEED=$(or $(SEED),1) FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q --timeout 1200 tests/services/query/test_hostile_requests.py)

mutants: setup ## change committed code at random places and count the changes that no test reports; resumable (MUTANTS=300 SEED=1 PROCESSES=2)
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(MUTANTS_ENV)
	@$(BIN)/uv pip sync --quiet --python $(MUTANTS_ENV)/bin/python --require-hashes requirements/dev.lock requirements/mutants.lock
	@$(BIN)/uv pip install --quiet --python $(MUTANTS_ENV)/bin/python --no-deps --no-build-isolation --editable .
	@$(MUTANTS_ENV)/bin/python -m tests.mutants --mutants $(MUTANTS) --seed $(or $(SEED),1) --processes $(PROCESSES)

hosts: setup ## test the integrations, each with its framework in its own environment (HOSTS=openai-agents; NEWEST=1 ignores the locks)
	@scripts/hosts $(HOSTS)

house: setup ## print size and shape of the source beside their targets, and the functions that one event passes
	@$(BIN)/python -m tests.house; met=$$?; $(BIN)/python -m tests.house.journey && exit $$met

costs: setup ## check that processor time grows at most by n log n with generated texts, queries, events and sessions (CASES=1000 SEED=1)
	@$(BIN)/python -m tests.costs --cases $(CASES) --seed $(or $(SEED),1)

clients: setup ## generate a Python and a TypeScript client from OpenAPI, and test both
	@scripts/clients

containers: setup ## build the image and test compose.yaml in containers: restarts, backup, upgrade (docker, or podman as root; KEEP=1 keeps podman's images)
	@scripts/containers

docs: setup ## build the documentation site in build/site, and check its links and that it loads nothing from elsewhere
	@scripts/site

release: ## write wheel, sdist, hashes, list of dependencies and release notes to dist; uploads nothing
	@scripts/release

up: setup ## run the whole system on this machine: NATS, SQLite, worker and query
	@$(BIN)/turnfold up

fmt: setup ## format the code, and apply safe fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lint: setup ## check format, style and size of the code, and that the locks name no index
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m pytest -q tests/house
	@if grep -n '://' requirements/*.lock requirements/hosts/*; then echo 'lint: a lock names a host; run make lock' >&2; exit 1; fi

types: setup ## check the types with mypy and pyright
	@$(BIN)/mypy & mypy=$$!; PYRIGHT_PYTHON_IGNORE_WARNINGS=1 PYRIGHT_PYTHON_GLOBAL_NODE=0 $(BIN)/pyright; pyright=$$?; wait $$mypy && exit $$pyright

layers: setup ## check that each layer imports only from layers below it
	@$(BIN)/lint-imports

bench: setup ## run all benchmarks, in 45 minutes (`python -m tests.benchmarks NAME` for some)
	@$(BIN)/python -m tests.benchmarks

lock: setup ## update requirements/*.lock from pyproject.toml, nothing younger than COOLDOWN (UPGRADE=--upgrade for newer versions)
	@COOLDOWN='$(COOLDOWN)' scripts/lock $(UPGRADE)

ci: ## run all checks, the fastest to fail first
	@.ci/run

clean: ## remove generated files and environments; conversations in .turnfold stay
	@rm -rf .venv .hosts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
