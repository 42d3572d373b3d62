# Every target sets up what it needs: a virtual environment in .venv with the pinned, hashed dependencies.
# PYTHON names the interpreter to build it with; without it the first one >= 3.11 that really runs is taken.

SHELL := /bin/sh
BIN := .venv/bin
.DEFAULT_GOAL := help
.NOTPARALLEL:
# A fleet is many processes: each would compile anew all it reads.
unexport PYTHONDONTWRITEBYTECODE

# Three processes fill two cores: most tests wait more than they work. With ARGS one, so that a debugger has
# its terminal. All tests of a file run in one of them.
TOGETHER := --numprocesses=3 --dist=loadfile --no-loadscope-reorder

# Files with tests that are long, or a fleet of their own for one of them.
LONGER := $(addprefix tests/acceptance/test_,allowances.py approvals.py bench.py catalogue.py children.py clocks.py \
	demo.py hostile.py liveness.py models.py model_outages.py outages.py policies.py recover.py soak.py throttled.py up.py) \
	$(addprefix tests/integration/test_,allowance_races.py compose.py run_limits.py)

# $(call step,NAME,COMMAND,WHAT TO DO WHEN IT FAILS)
define step
@printf '==> %s\n' '$(1)'; $(2) || { printf '\n%s failed. %s\n' '$(1)' '$(3)' >&2; exit 1; }
endef

.PHONY: help
help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## /make \1|/p' Makefile | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

.PHONY: setup
setup: ## the virtual environment alone; does nothing when it is up to date
	@sh ops/setup.sh "$(PYTHON)"

.PHONY: demo
demo: setup ## orders on a fleet whose workers are killed and frozen: a table, and a verdict on every invariant
	@$(BIN)/fencepost demo $(ARGS)

.PHONY: chaos
chaos: setup ## every fault point, ten minutes of every fault, a hostile broker, every drill: hours
	$(call step,fault points,FENCEPOST_CHAOS=1 $(BIN)/python -m pytest tests/acceptance/test_faults.py,Run one alone with -k NAME -x)
	$(call step,chaos,$(BIN)/fencepost chaos --seconds 600 --runs 1200 $(ARGS),See the folder it kept; the same seed gives the same plan again)
	$(call step,hostile broker,FENCEPOST_HOSTILE=true $(BIN)/python -m pytest tests/acceptance,Run one alone with -k NAME -x)
	$(call step,weather,FENCEPOST_CHAOS=1 $(BIN)/python -m pytest tests/acceptance/weather $(LONGER),Run one alone with -k NAME -x)
	$(call step,sweep,$(BIN)/fencepost drill --sweep,Run a failure again: fencepost drill drill-failures/NAME.json)
	$(call step,explore,$(BIN)/fencepost drill --explore 2000,Run a failure again: fencepost drill drill-failures/NAME.json)
	$(call step,races,$(BIN)/fencepost drill --races 60,Threads meet as the machine has it: run it again)
	$(call step,backlog,$(BIN)/python -m fencepost_ops.bench_backlog,See what is left and what was published beyond need)
	$(call step,outage,$(BIN)/python -m fencepost_ops.bench_outage,See which attempts were made while the service throttled)
	$(call step,models,$(BIN)/python -m fencepost_ops.bench_models,See how many requests its runs made while the provider failed)

# What each process that tests would compile for itself is compiled meanwhile, by one.
.PHONY: test
test: setup ## everything that must pass: lint, types, import contracts, all tests
	@$(if $(ARGS),,$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider >/dev/null 2>&1 & )\
		$(MAKE) --no-print-directory lint; code=$$?; wait; exit $$code
	$(call step,pytest,$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),$(TOGETHER)),Run one alone with: make test ARGS="-k NAME -x")

.PHONY: lint
lint: setup ## ruff, mypy and import-linter, without the tests
	$(call step,ruff check,$(BIN)/ruff check .,Much of it is mended by: make format)
	$(call step,ruff format,$(BIN)/ruff format --check .,Run: make format)
	$(call step,mypy,$(BIN)/python -m mypy --num-workers=2,Every name is typed strictly; see [tool.mypy] in pyproject.toml)
	$(call step,lint-imports,$(BIN)/lint-imports --no-logo,The layers are drawn in ARCHITECTURE.md; see [tool.importlinter] in pyproject.toml)

.PHONY: format
format: setup ## mend what ruff can mend
	@$(BIN)/ruff check --fix . || true
	@$(BIN)/ruff format .

.PHONY: bench
bench: setup ## runs per second, latency and memory on this machine
	@$(BIN)/python -m fencepost_ops.bench $(ARGS)

.PHONY: lock
lock: setup ## pin anew what pyproject.toml asks for (needs uv)
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--all-extras pyproject.toml --output-file ops/requirements.lock

.PHONY: clean
clean: ## remove the virtual environment and all caches; data of `fencepost up` stays
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find shared workers relay ops tests -name __pycache__ -type d -prune -exec rm -rf {} +
