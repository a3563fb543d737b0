# Everything a newcomer needs, from a fresh clone with Python 3.11+ and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# An interpreter that is given, as in `make test PYTHON=python3.12`, replaces the one of an existing .venv.
ifneq ($(origin PYTHON),file)
STAMP := $(VENV)/.installed-$(notdir $(PYTHON))
DEMO_STAMP := $(VENV)/.installed-demo-$(notdir $(PYTHON))
REPLACE = test "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" || rm -rf $(VENV)
endif
UV := uv==0.13.7
# On a terminal uv shows what it downloads; a log needs no line for each package.
QUIET := $(shell test -t 2 || echo --quiet)

# Tests and Spark start hundreds of Python processes: compiling each import anew would cost three seconds in every one.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

## -- Set-up

# The package and what a lock file pins in .venv, and then the kernels: $(call install,LOCK FILE,IMAGES OF KERNELS).
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Afterglow needs Python 3.11 or newer; set PYTHON=python3.x")'
	@$(or $(REPLACE),true)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing the packages of $(1) into $(VENV) (about a minute, 2 GB) ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(UV)'
	@$(BIN)/uv pip install $(QUIET) --require-hashes --python $(BIN)/python -r $(1)
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
	@$(BIN)/python -m afterglow.format._kernels prepare $(2)
	@touch $@
endef

.PHONY: install
install: $(STAMP) ## make .venv with the package, all extras and the test tools

$(STAMP): requirements.lock pyproject.toml
	$(call install,requirements.lock)

# What the demo needs, without test tools: `make install` adds them to the same environment.
$(DEMO_STAMP): requirements-demo.lock pyproject.toml
	$(call install,requirements-demo.lock,kernels)

.PHONY: lock
lock: $(STAMP) ## resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --all-extras --group dev pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --extra serve --extra spark --extra java --extra compile --group demo --constraints requirements.lock \
	  pyproject.toml -o requirements-demo.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --group pyproject.toml:docs -o requirements-docs.lock

.PHONY: wheel
wheel: $(STAMP) ## build the wheels of pulsar-afterglow into dist/, and try those of this machine in an empty environment
	rm -rf dist
	AFTERGLOW_WHEEL=x86_64 $(BIN)/hatchling build -t wheel -d dist
	AFTERGLOW_WHEEL=aarch64 $(BIN)/hatchling build -t wheel -d dist
	AFTERGLOW_WHEEL=any $(BIN)/hatchling build -t wheel -d dist
	$(BIN)/python scripts/check_wheel.py "$$PWD"/dist/*.whl

.PHONY: clean
clean: ## remove .venv, dist and all caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache
	find src tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +

## -- Quality

.PHONY: lint
lint: $(STAMP) ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## let ruff write the code's shape
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: proto
proto: $(STAMP) ## generate the protobuf modules from src/afterglow/format/proto/*.proto
	$(BIN)/python scripts/generate_protos.py

.PHONY: docs
docs: $(STAMP) ## generate the pages of docs/ that come from code
	$(BIN)/python scripts/generate_docs.py

# The generator of the site has an environment of its own: nothing else needs it.
SITE_TOOLS := build/site-tools
$(SITE_TOOLS)/.installed: requirements-docs.lock
	$(PYTHON) -m venv $(SITE_TOOLS)
	$(SITE_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

.PHONY: docs-site
docs-site: $(SITE_TOOLS)/.installed ## build the documentation site in build/site ([REPOSITORY=https://…/blob/main])
	$(SITE_TOOLS)/bin/python scripts/build_site.py --repository '$(REPOSITORY)'

.PHONY: pictures
pictures: $(STAMP) ## take the pictures of the console in docs/ (needs chromium)
	PYTHONPATH=. $(BIN)/python scripts/take_console_pictures.py

## -- Tests

.PHONY: test
test: $(STAMP) lint ## everything that needs only what pip installs
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not pulsar"

.PHONY: quick
quick: $(STAMP) ## all tests that start no JVM and no other process
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not pulsar" --quick

.PHONY: pulsar-test
pulsar-test: $(STAMP) ## tests against real servers and tools (needs mvn, a JDK, go, cargo)
	$(BIN)/python -m pytest -q -m pulsar
	$(BIN)/python scripts/spark_matrix.py

.PHONY: spark-matrix
spark-matrix: $(STAMP) ## tests of Spark 4.0 to 4.3 and of the lowest versions; AFTERGLOW_SPARK=4.0,lowest selects
	$(BIN)/python scripts/spark_matrix.py

.PHONY: mutants
mutants: $(STAMP) ## break the code on purpose, one line at a time: each named test must notice ([ONLY=name] [JOBS=2])
	$(BIN)/python scripts/run_mutants.py --only '$(ONLY)' --jobs $(or $(JOBS),2)

FIRST ?= 0
SEEDS ?= 1000
STEPS ?= 1000
.PHONY: sim
sim: $(STAMP) ## simulate SEEDS=1000 schedules of STEPS=1000 from seed FIRST=0 on, JOBS=0 (all cores) at a time
	$(BIN)/python -m tests.support.sim --seed $(FIRST) --count $(SEEDS) --steps $(STEPS) --jobs $(or $(JOBS),0)

.PHONY: bench
bench: $(STAMP) ## the benchmarks; results go to bench/results/
	$(BIN)/python -m bench $(WORKLOAD)

## -- Use

.PHONY: demo
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) ## the main job, from an empty machine
	$(BIN)/afterglow demo

.PHONY: help
help: ## list every target
	@awk -F ':.*## ' '/^## -- /{printf "\n%s\n", substr($$0,7)} /^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
