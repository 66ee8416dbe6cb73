# Every target works from a fresh clone: it sets up .venv first where needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
KERNELS := $(VENV)/.kernels

.PHONY: setup quickstart demo-job test test-slow sanitizers soak faults fuzz random-collectives check structure reproduce reproduce-quick format docs pictures ui clean

setup: $(KERNELS)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m chorale.runners.oneccl.install || echo 'warning: no oneccl runner: see above'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[mpi]' || echo 'warning: no mpi runner: see above'
	$(BIN)/python -m pip install --quiet -c constraints.txt 'torch==2.13.0+cpu' || echo 'warning: torch is not installed: no build for CPUs only is offered here'
	touch $(INSTALLED)

$(KERNELS): $(INSTALLED)
	$(BIN)/python -m chorale.synth.kernels.warm_up
	touch $(KERNELS)

quickstart: setup
	$(BIN)/chorale tune examples/quickstart.yaml

# Training on an emulated fabric with Gloo and with a tuning table: figures in chorale-data/demo-job.json.
demo-job: setup
	$(BIN)/python -m chorale.experiments.job_demo --picture chorale-data/demo-job.svg

# Tests side by side, then those that need the machine for themselves.
test: setup
	$(BIN)/python -m pytest -m 'not slow and not alone' -n logical --maxprocesses 4 --dist loadfile --durations 15
	$(BIN)/python -m pytest -m 'not slow and alone' --durations 15

test-slow: setup
	$(BIN)/python -m pytest -m slow

# The engine under sanitizers: random programs of eight ranks, and words that are no programs.
sanitizers: setup
	$(BIN)/python -m pytest tests/native

# Random collectives of jobs in torch against gloo, and jobs of which a rank is killed.
random-collectives: setup
	$(BIN)/python -m tests.live.job.random_collectives --count 10000 --seed 1
	$(BIN)/python -m tests.live.job.random_collectives --count 40 --seed 1 --kill

soak: setup
	$(BIN)/python -m tests.integration.soak $$(mktemp -d) --trials 500 --faults 40

# Single faults in the middle of a launch: when each is noticed, when work goes on, what is lost or doubled.
faults: setup
	$(BIN)/python -m tests.integration.faults

# Damaged files for every parser, within limits of time and memory.
fuzz: setup
	$(BIN)/python -m tests.fuzz --count 100000 --seed 1

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.structure

# Files, lines, share of imports, lengths of functions, and the rules that the tree keeps.
structure: $(INSTALLED)
	$(BIN)/python -m tests.structure

# Every table and figure: in an hour, or in minutes. What was computed before is kept; ask again to go on.
reproduce: setup
	$(BIN)/python -m chorale.experiments.framework.reproduce

reproduce-quick: setup
	$(BIN)/python -m chorale.experiments.framework.reproduce --quick

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: setup
	$(BIN)/python docs/site/pictures.py

ui: setup
	$(BIN)/chorale ui

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
