# One word per job; people and CI call the same ones.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install check test test-all docs demo

install: .venv/installed

# The stamp is newer than what it was made from, so a changed dependency installs again.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools wheel
	@# torch first and by its exact version: a range would fetch the CUDA build and its gigabytes.
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A file stays with one worker, so that its costly fixtures are made once; files come in our order.
# Modules are compiled once, whatever the environment says: tests start hundreds of processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# Everything but what is marked slow: fuzzers, failures of several processes, pages of the docs.
test: install
	$(PYTEST) -m "not slow"

test-all: install
	$(PYTEST)

# The documentation as a website, in site/.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The paper's comparison in a few minutes on two CPU cores, on the text that comes with the package.
demo: install demo/data/bpe/data.json
	$(BIN)/zipflm compare --data demo/data --preset demo --out demo/study

demo/data/data.json: | install
	$(BIN)/zipflm prepare --corpus state-of-the-union --out demo/data

demo/data/bpe/data.json: | demo/data/data.json
	$(BIN)/zipflm prepare --corpus state-of-the-union --bpe 4000 --out demo/data/bpe
