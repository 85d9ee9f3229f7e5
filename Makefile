# `make demo` and `make test` are all a new user needs. Both create .venv; only `make test` installs the development tools.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest -n 2 --dist worksteal
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup setup-dev demo test test-all durations lint clean
setup: .venv/.installed
setup-dev: .venv/.installed-dev

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[dev]"
	touch .venv/.installed $@

demo: setup
	$(BIN)/dietcl demo

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(PYTEST) -m "not long"
	@echo "make test-all runs the long tests: kills, clusters, browsers, many processes, learning to the end."

# What `make test` leaves out; the two together are all tests, each once.
test-all: setup-dev
	$(PYTEST) -m long

durations: setup-dev
	$(PYTEST) --durations-file tests/durations.json

clean:
	rm -rf .venv runs
