# The commands people use here; `make help` lists them. Settings are environment variables or make variables:
#   make serve PORT=8080 MODEL_ID=/models/my-model

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test check clients bench bench-engine bench-batch chaos clean

PYTHON ?= python3
# How many tests run at once, where they may.
TEST_PROCESSES ?= 2
VENV := .venv
BIN := $(VENV)/bin
# What was installed, and from what: newer lock files install again, nothing else does.
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PROJECT := pyproject.toml ops/install.py

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

serve: $(RUNTIME) ## install, then run Redis, a worker and a web node here; Ctrl-C stops them
	@exec $(BIN)/tgq serve

# First what may share the machine, then whole services, which fill it and whose seconds count. Both run whatever the other
# finds; a part from which PYTEST_ADDOPTS leaves nothing (5) is no failure, unless the other has nothing either.
test: $(DEV) ## install, then run the whole test suite
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile tests/unit tests/structure tests/contract tests/integration tests/gpu; parts=$$?; \
	$(BIN)/python -m pytest tests/acceptance; whole=$$?; \
	case "$$parts $$whole" in "0 0" | "0 5" | "5 0") ;; *) exit 1 ;; esac

check: $(DEV) ## lint, format, types and the walls between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clients: $(DEV) ## try real clients, each in an environment of its own; CLIENTS="openai langchain" tries those alone
	@$(BIN)/python -m tests.clients $(CLIENTS)

bench: $(DEV) ## measure the relay, the service's cost and the time to first token
	@$(BIN)/python -m ops.bench

bench-engine: $(DEV) ## measure the engine beside the machine's limits and beside transformers
	@$(BIN)/python -m ops.bench.engine

bench-batch: $(DEV) ## measure what live requests feel of a batch, and a batch alone (4 minutes); ARGS=--real takes the real model
	@$(BIN)/python -m ops.bench.batch $(ARGS)

chaos: $(DEV) ## break parts of a busy service and check every answer; ARGS="--help" lists what it can do
	@$(BIN)/python -m ops.chaos $(ARGS)

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) .venv-clients .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module does not work here (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

$(RUNTIME): $(PROJECT) requirements.lock | $(BIN)/python
	@$(BIN)/python ops/install.py
	@touch $@

$(DEV): $(PROJECT) requirements.lock requirements-dev.lock | $(BIN)/python
	@$(BIN)/python ops/install.py --dev
	@touch $(RUNTIME) $@
