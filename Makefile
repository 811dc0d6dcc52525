# `make test` needs nothing but Python and git: it creates .venv, installs into it and runs the tests.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
WORKERS ?= auto

.PHONY: install demo check test test-oldest docs-check format clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

# the package alone is enough for the demo
$(BIN)/ordnet:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e .

demo: $(BIN)/ordnet
	$(BIN)/ordnet demo

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: $(INSTALLED)
	# one thread per worker and per process it starts: more only fight over the cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# what uses each dependency, in a few minutes
FAST := tests/data/test_folder.py tests/data/test_pictures.py tests/model/test_checkpoint.py \
	tests/model/test_hub.py tests/inference/test_parser.py tests/inference/test_video.py tests/inference/test_export.py \
	tests/training/test_training.py tests/serve/test_app.py tests/commands/test_predict.py tests/picture

test-oldest:
	# the lowest versions that pyproject.toml allows, in an environment of their own
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[dev]'
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n $(WORKERS) $(FAST)

docs-check: $(INSTALLED)
	# runs what README.md and docs/*.md tell people to type
	$(BIN)/python -m scripts.docs_check

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-oldest .mypy_cache .ruff_cache .pytest_cache
