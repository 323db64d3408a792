# Needs Python 3.11+ and make. Everything else is installed into .venv by the first target that wants it.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test check format bench clean
help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/core  ## set up, ask the model in the package, and fine-tune it
	$(BIN)/bertkit demo

test: .venv/dev  ## set up, and run the tests
	$(BIN)/python -m pytest -n auto

check: .venv/dev  ## format, lint, types and the size of the house
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/house.py

format: .venv/dev  ## format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev  ## run the benchmarks that need no accelerator (real data: set BERTKIT_DATA)
	$(BIN)/python benchmarks/tokenizer_speed.py
	$(BIN)/python benchmarks/vocabulary_memory.py
	$(BIN)/python benchmarks/checkpoint_reading.py
	$(BIN)/python benchmarks/sentence_splitting.py
	$(BIN)/python benchmarks/data_pipeline.py
	$(BIN)/python benchmarks/resume_kills.py
	$(BIN)/python benchmarks/cpu_inference.py

clean:  ## remove the environment and caches
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bertkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/core: .venv/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

.venv/dev: .venv/core
	$(INSTALL) -e ".[dev]"
	touch $@
