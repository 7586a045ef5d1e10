# CI uses the same targets.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install check test test-all docs demo

install: .venv/installed

# The stamp file is older than a changed dependency, which triggers a new installation.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools wheel
	@# torch first, with its exact version: a range would download the CUDA build (gigabytes).
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# loadfile: each file runs in one worker, so expensive fixtures are created once.
# PYTHONDONTWRITEBYTECODE is unset because the tests start hundreds of Python processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# All tests not marked slow (fuzzers, multi-process failures, guides).
test: install
	$(PYTEST) -m "not slow"

test-all: install
	$(PYTEST)

# Build the documentation site in site/.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The paper's comparison on the bundled text; a few minutes on two CPU cores.
demo: install demo/data/bpe/data.json
	$(BIN)/zipflm compare --data demo/data --preset demo --out demo/study

demo/data/data.json: | install
	$(BIN)/zipflm prepare --corpus state-of-the-union --out demo/data

demo/data/bpe/data.json: | demo/data/data.json
	$(BIN)/zipflm prepare --corpus state-of-the-union --bpe 4000 --out demo/data/bpe
