# Everything that a person types. Each target makes the environment that it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TORCH ?= torch==2.13.0
TEST_PROCESSES ?= 2
ORACLES := .cache/oracles

.PHONY: help env quickstart test faults vllm test-oracles check lint types contracts report clean mutants
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

env: $(STAMP) ## the environment, in .venv (CPU torch unless TORCH says otherwise)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Use: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable ".[gguf]" --group dev
	@touch $(STAMP)

quickstart: $(STAMP) ## the whole pipeline on a small synthetic world, in minutes
	$(BIN)/rlhf run quickstart --fresh

# A file's tests stay in one process; a process for each core, so one thread for each process.
test: $(STAMP) ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

faults: $(STAMP) ## every fault that a run must survive, injected: a line each (half an hour)
	RLHF_KILLS=$${RLHF_KILLS:-20} $(BIN)/python -m pytest -m faults

vllm: $(STAMP) ## the vLLM engine against a real vLLM, whose environment is made in .cache (some GB)
	$(BIN)/rlhf setup-vllm --into .cache/vllm
	$(BIN)/rlhf fetch-model smollm2
	$(BIN)/python -m pytest -m vllm -rs tests/vllm

test-oracles: $(ORACLES)/.ready ## our formulas against those of verl and torchrl (optional; installs them in .cache)
	$(ORACLES)/venv/bin/python -m pytest tests/oracles

# Of its own, so that their versions bind nobody, and without what they depend on: that stands in the project's own
# environment, which a path file adds.
$(ORACLES)/.ready: $(STAMP) tests/oracles/requirements.txt
	$(BIN)/python -m venv --clear --without-pip $(ORACLES)/venv
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(ORACLES)/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(BIN)/python -m pip --python $(ORACLES)/venv install --quiet --no-deps --requirement tests/oracles/requirements.txt
	@touch $@

mutants: $(STAMP) ## break numeric lines one at a time and show that the tests notice each
	$(BIN)/python tests/mutants.py

check: lint types contracts ## style, types, layers

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

contracts: $(STAMP)
	$(BIN)/lint-imports

clean: ## remove runs and caches, keep the environment
	rm -rf runs .cache .pytest_cache .hypothesis .ruff_cache
