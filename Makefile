# Every target sets up its own .venv first; after the first time that costs nothing.
# PYTHON=... picks the interpreter the .venv is made with, PORT=... the port of demo and serve.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test lint format clean

BIN := .venv/bin
PORT ?= 8000
MODEL ?= examples/demo_checkpoint
ARGS ?=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv: CPU torch, vLLM without device code, JAX, this package
	@scripts/setup_env.sh

demo: setup ## Serve the demonstration checkpoint on the CPU and chat with it (PORT=8000)
	@$(BIN)/python scripts/demo.py --port $(PORT)

serve: setup ## Serve MODEL=... with ARGS="..." (for example ARGS="--device cpu")
	@$(BIN)/vllm serve $(MODEL) --port $(PORT) $(ARGS)

test: setup ## Run the tests (ARGS="-k expression" to choose)
	@$(BIN)/python -m pytest -q --durations=10 $(ARGS)

lint: setup ## Style, formatting, import rules
	@failed=0; for check in "ruff check ." "ruff format --check ." "lint-imports --no-logo"; do \
	    $(BIN)/$$check || failed=1; \
	done; exit $$failed

format: setup ## Let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove .venv, builds and caches (not the cached vLLM wheel)
	@rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis .demo
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
