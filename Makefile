# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
# `make test LOCK=.ci/lock.txt` installs the versions in the lock file instead of the newest.
LOCK ?=
SUPPLY := .venv-supply
OLDEST := .venv-oldest
# `make test-python VERSION=3.13`; a path to an interpreter is taken as well.
VERSION ?= 3.13
OTHER := .venv-python
PACKAGE := .venv-package
SMOKE := tests/test_checkpoints.py tests/test_codes.py tests/test_figures.py tests/export tests/explorer/test_guard.py \
	tests/explorer/test_attack.py tests/index/test_searching.py

.PHONY: help demo test test-slow test-oldest test-python check docs format bench package lock audit sbom clean
help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[explorer]'
	@touch $@

$(INSTALLED_DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(if $(LOCK),--constraint $(LOCK)) --editable '.[dev]'
	@touch $@ $(INSTALLED)

demo: $(INSTALLED) ## Set up, train on built-in images, show what was learned
	$(BIN)/imsvd demo

test: $(INSTALLED_DEV) ## Set up and run the tests (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(INSTALLED_DEV) ## Run the tests that take long
	$(BIN)/python -m pytest -m slow

test-oldest: $(SUPPLY)/bin/uv ## Run a few tests with the oldest versions that pyproject.toml allows (8 GB)
	$(SUPPLY)/bin/uv venv --quiet --clear --python 3.11 $(OLDEST)
	$(SUPPLY)/bin/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct --editable '.[dev]'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -m "not slow" $(SMOKE)
	rm -rf $(OLDEST)

test-python: $(SUPPLY)/bin/uv ## Run a few tests with Python VERSION and the newest versions that pyproject.toml allows (8 GB)
	$(SUPPLY)/bin/uv venv --quiet --clear --python $(VERSION) $(OTHER)
	$(SUPPLY)/bin/uv pip install --quiet --python $(OTHER) --editable '.[dev]'
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -m "not slow" $(SMOKE)
	rm -rf $(OTHER)

check: $(INSTALLED_DEV) ## Lint, types and import contracts; CI runs this, docs and test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(INSTALLED_DEV) ## Build the documentation site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(INSTALLED_DEV) ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED_DEV) ## Measure the loss against its alternatives on this machine
	$(BIN)/imsvd bench loss

package: ## Build wheel and sdist in dist/, check them, install the wheel in a new environment and run it (6 GB)
	rm -rf dist $(PACKAGE)
	$(PYTHON) -m venv $(PACKAGE)
	$(PACKAGE)/bin/python -m pip install --quiet build twine
	$(PACKAGE)/bin/python -m build --outdir dist .
	$(PACKAGE)/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv --clear $(PACKAGE)
	$(PACKAGE)/bin/python -m pip install --quiet $(if $(LOCK),--constraint $(LOCK)) dist/*.whl
	$(PACKAGE)/bin/python tests/installed.py
	rm -rf $(PACKAGE)

$(SUPPLY)/bin/uv:
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet cyclonedx-bom pip-audit uv

lock: $(SUPPLY)/bin/uv ## Write the newest versions of all dependencies to .ci/lock.txt
	$(SUPPLY)/bin/uv pip compile --quiet --upgrade --universal --extra dev --no-annotate --no-header \
		--output-file .ci/lock.txt pyproject.toml

audit: $(SUPPLY)/bin/uv ## Look up known vulnerabilities of the locked versions (needs the internet)
	@$(SUPPLY)/bin/pip-audit --strict --no-deps --disable-pip --requirement .ci/lock.txt || \
		{ echo "Vulnerabilities are listed above, or the database could not be reached; see the message."; exit 1; }

sbom: $(INSTALLED_DEV) $(SUPPLY)/bin/uv ## Write what is installed, with licenses, to sbom.json (CycloneDX)
	$(SUPPLY)/bin/cyclonedx-py environment --output-file sbom.json $(BIN)/python

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(SUPPLY) $(OLDEST) $(OTHER) $(PACKAGE) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
