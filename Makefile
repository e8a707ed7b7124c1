# Everything starts here. `make demo` and `make test` set themselves up; they need Python >= 3.11 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv

.PHONY: help demo test bench-policy test-integrations lanes check lint types contracts coverage lock clean

help:
	@echo "make demo    see the scheduler work, on this machine, in two minutes"
	@echo "make test    every test; some of them: make test ARGS=\"-m 'not slow'\""
	@echo "make test-integrations   the adapters with the real frameworks, in environments of their own"
	@echo "make bench-policy   the scheduling policies against each other and their targets, in virtual time"
	@echo "make check   the gate: lint, types, import contracts, coverage"
	@echo "make lock    compile requirements/*.txt again"
	@echo "make clean   remove .venv and whatever else was made"

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thunder-sdk needs Python 3.11 or newer, $(PYTHON) is %d.%d; say which to use: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt

# One stamp per set of packages; the larger set contains the smaller one.
$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(UV)
	$(UV) pip sync --quiet --python $(BIN)/python requirements/bootstrap.txt requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.dev $(VENV)/.demo

$(VENV)/.demo: requirements/demo.txt pyproject.toml | $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/demo.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/thunder demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 $(ARGS)

# The frameworks agree with no single environment: each lane is one, holding our packages beside them.
# Lane b needs Python 3.12; where there is none its tests say so and are skipped.
LANES     := .venv-lanes
PYTHON312 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python) $(shell command -v python3.12))

test-integrations: $(VENV)/.dev lanes
	$(BIN)/pytest -n 2 --dist loadfile tests/integrations $(ARGS)
	$(BIN)/python -m tests.integrations.table

lanes: $(foreach lane,a proxy crewai,$(LANES)/$(lane)/.ready) $(if $(PYTHON312),$(LANES)/b/.ready)

$(LANES)/b/.ready: INTERPRETER = $(PYTHON312)
$(LANES)/%/.ready: INTERPRETER = $(BIN)/python
$(LANES)/%/.ready: requirements/lane-%.txt | $(VENV)/.dev
	$(UV) venv --quiet --clear --python $(INTERPRETER) $(LANES)/$*
	$(UV) pip sync --quiet --python $(LANES)/$*/bin/python --require-hashes requirements/lane-$*.txt
	$(UV) pip install --quiet --python $(LANES)/$*/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

# What the policies are worth, in virtual time; fails where a target is missed.
bench-policy: $(VENV)/.demo
	$(BIN)/python -m benchmarks.policy $(ARGS)

check: lint types contracts coverage

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

# The core and the SDK are measured by their own suites alone, so that a branch is covered on purpose.
coverage: $(VENV)/.dev
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q -n 2 -m "not slow" tests/sdk tests/server/core
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=100

COMPILE := $(UV) pip compile --quiet --no-header --universal --generate-hashes --no-emit-index-url --no-annotate
LOCK    := $(COMPILE) --python-version 3.11
EXTRAS  := --extra all

lock: | $(UV)
	$(LOCK) --group bootstrap -o requirements/bootstrap.txt
	$(LOCK) pyproject.toml $(EXTRAS) --group install -o requirements/demo.txt
	$(LOCK) pyproject.toml $(EXTRAS) --group check -o requirements/dev.txt
	$(LOCK) pyproject.toml requirements/openai2.in --group test -o requirements/openai2.txt
	for lane in a proxy crewai; do \
		$(LOCK) pyproject.toml requirements/lane-$$lane.in --group lane -o requirements/lane-$$lane.txt || exit; done
	$(COMPILE) --python-version 3.12 pyproject.toml requirements/lane-b.in --group lane -o requirements/lane-b.txt

clean:
	rm -rf $(VENV) $(LANES) dist build .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
