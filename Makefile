# Every target works from a clean clone: it sets up .venv first, which is quick once done.
PYTHON := .venv/bin/python
RECIPE ?= deepseek_v4_a3
PROMPT ?= 你好
WORKERS ?= 2

.PHONY: setup checks demo test fast lint format clean

setup:
	@bash scripts/setup.sh

# Also the vendor's operator schemas and the open part of its compiler: about 1 GB.
checks:
	@bash scripts/setup.sh checks

demo: setup
	.venv/bin/ascend-run generate recipe=$(RECIPE) device=emulated scale=tiny --prompt "$(PROMPT)"

# One thread each, since all cores are taken; in our order, which begins with the longest files.
test: checks lint
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Folders whose tests import torch are not even read.
HEAVY := ops vllm serve vendor lowering

fast: setup
	$(PYTHON) -m pytest -n $(WORKERS) $(HEAVY:%=--ignore=tests/%) -m "not registry and not sweep"

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/yamllint --strict recipes registry ops
	.venv/bin/codespell

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv .setup.lock .mypy_cache .pytest_cache .ruff_cache
