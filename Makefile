# `make demo` and `make test` are all a new user needs; both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint clean
setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/dietcl demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

clean:
	rm -rf .venv runs
