# `make test` and `make train` work on a fresh machine: they create .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install test lint docs train verify clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q 'torch>=2.9,<2.14'
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

install: $(VENV)/.installed

test: install lint
	$(BIN)/pytest -n 2 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

train: install
	$(BIN)/casa train --recipe casa --env Breakout --preset laptop --steps 500_000 --run-dir runs/breakout-$$(date +%Y%m%d-%H%M%S)

verify: install
	$(BIN)/casa verify

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
