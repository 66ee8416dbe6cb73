# Every target works from a fresh clone: it sets up .venv first where needed.
# The first that starts and can make environments: a name on the PATH may be a stub, or lack its module venv.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& command -v $$name && break; done)
NEEDS_PYTHON = @test -n '$(PYTHON)' || { echo 'Python 3.11, 3.12 or 3.13 with the module venv is needed: install one, or say make PYTHON=PATH' >&2; exit 1; }
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
KERNELS := $(VENV)/.kernels
KERNEL_SOURCES := setup.py $(wildcard synth/kernels/cpp/*)

# Without bytecode on disk every process would compile the package anew, and every worker of tests its tests.
export PYTHONDONTWRITEBYTECODE :=

# Bytecode of packages is made when they are first imported: most of it never is.
PIP := $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt
REPORTS := $(VENV)/pip.json $(VENV)/dev.json $(VENV)/mpi.json $(VENV)/torch.json
# Judged by another Python than the one whose packages are judged; HASHES=warn goes on at other bytes.
CHECK_HASHES := $(PYTHON) -I -S deploy/hashes.py check

# The tests note here which real parts they ran.
export CHORALE_TEST_PARTS := build/real-parts

.PHONY: setup hashes bill quickstart demo-job test test-side-by-side test-in-pairs test-all test-slow pythons test-slurm properties sanitizers soak faults fuzz claims random-collectives check structure reproduce reproduce-quick format docs pictures ui clean

setup: $(KERNELS)

$(INSTALLED): pyproject.toml constraints.txt hashes.txt
	$(NEEDS_PYTHON)
	$(PYTHON) -m venv $(VENV)
	rm -f $(REPORTS)
	$(PIP) --report $(VENV)/pip.json --upgrade pip
	$(PIP) --report $(VENV)/dev.json -e '.[dev]'
	$(CHECK_HASHES) $(VENV)/pip.json $(VENV)/dev.json || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -m chorale.runners.oneccl.install || echo 'warning: no oneccl runner: see above'
	$(PIP) --report $(VENV)/mpi.json -e '.[mpi]' || echo 'warning: no mpi runner: see above'
	$(PIP) --report $(VENV)/torch.json 'torch==2.13.0+cpu' || echo 'warning: torch is not installed: no build for CPUs only is offered here'
	$(CHECK_HASHES) $(VENV)/mpi.json $(VENV)/torch.json || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -m compileall -q synth runners job tuner experiments chorale/*.py
	$(BIN)/python -c 'import numpy, pydantic, rich.table, typer'
	touch $(INSTALLED)

# The installation built them once; this does it again after a change.
$(KERNELS): $(KERNEL_SOURCES) | $(INSTALLED)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $(KERNELS)

quickstart: setup
	$(BIN)/chorale tune examples/quickstart.yaml

# Training on an emulated fabric with Gloo and with a tuning table: figures in chorale-data/demo-job.json.
demo-job: setup
	$(BIN)/python -m chorale.experiments.demos.job

# The tests that everyone runs; at the end, which real parts they ran. Tests without servers go beside those with them,
# which often wait and of which two run at once; measurements on one machine take turns, so that one of these tests may
# also wait for others. Then those that need the machine for themselves. Files go in the order of
# their folders, in which the long ones come first. KIND is one of two in tests/conftest.py.
KIND = not slow and not more
BESIDE = not alone and not in_pairs
PYTEST := $(BIN)/python -m pytest --durations 15
test: setup
	rm -rf $(CHORALE_TEST_PARTS)
	$(MAKE) --jobs=2 test-side-by-side test-in-pairs KIND='$(KIND)'
	$(PYTEST) -m '$(KIND) and alone'
	@$(BIN)/python -m tests.real_parts

test-side-by-side:
	$(PYTEST) -m '$(KIND) and $(BESIDE)' -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-in-pairs:
	$(PYTEST) -m '$(KIND) and in_pairs' -n 2 --dist loadfile --no-loadscope-reorder

# Everything else that ends within minutes: tests that cover little besides, all pages, sanitizers, and each property on more cases.
test-all: setup
	CHORALE_EXAMPLES=100 $(MAKE) test KIND='not slow and (more or hypothesis)'

# A real Slurm of four nodes on this machine, set up from packages of the distribution, which are installed where apt is,
# and taken down again: as root. Where that cannot be, it ends and says what is missing.
test-slurm: setup
	$(BIN)/python -m tests.live.slurm.packages
	$(BIN)/python -m pytest -m slow tests/live/slurm -n 0 --durations 15

# The wheel in new environments, one for each other Python that is here: beside `make setup`, of which it needs nothing.
pythons:
	$(NEEDS_PYTHON)
	$(PYTHON) -m tests.packaging.pythons 3.12 3.13

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Each property on 800 examples: `make test` tries 15, `make test-all` 100.
properties: setup
	CHORALE_EXAMPLES=800 $(BIN)/python -m pytest -m 'not slow and not alone and not in_pairs' -n logical --maxprocesses 4 --dist loadfile tests/unit

# The engine under sanitizers: random programs of eight ranks, words that are no programs, and 10,000 random plans. Then the kernels with checked
# indices; the extension is built anew for that, and back again.
sanitizers: setup
	$(BIN)/python -m pytest tests/native
	$(BIN)/python -m tests.native.plan_tasks thread 1001 10000 0
	$(BIN)/python -m tests.native.plan_tasks address 1001 10000 3
	CXXFLAGS=-DCHORALE_CHECK_BOUNDS $(BIN)/python setup.py --quiet build_ext --force --inplace
	$(BIN)/python -m pytest -m 'not slow' -n logical --maxprocesses 4 --dist loadfile tests/unit/synth; status=$$?; \
		$(BIN)/python setup.py --quiet build_ext --force --inplace && exit $$status

# Random collectives of jobs in torch against gloo, and jobs of which a rank dies or stalls.
random-collectives: setup
	$(BIN)/python -m tests.live.job.random_collectives --count 10000 --seed 1
	$(BIN)/python -m tests.live.job.torch.rank_failures --rounds 4

# 500 random sequences of faults, each with a history that is checked.
soak: setup
	$(BIN)/python -m tests.soak --count 500 --seed 1

# Single faults of processes, hosts, disks, services and clocks in the middle of a launch: a table. As root.
faults: setup
	$(BIN)/python -m tests.integration.faults

# Damaged files for every parser, within limits of time and memory.
fuzz: setup
	$(BIN)/python -m tests.fuzz --count 100000 --seed 1

# Claims of optimality on random fabrics at the edges, against references that share no code with what they check.
claims: setup
	for method in forest alltoall bfb allreduce others; do \
		$(BIN)/python -m tests.reference.claims --method $$method --count 10000 --seed 1 || exit 1; \
	done

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
	$(BIN)/python -m chorale.experiments.framework.report

reproduce-quick: setup
	$(BIN)/python -m chorale.experiments.framework.report --quick

# The SHA-256 of what was downloaded, after a change of constraints.txt: look at the difference before it is kept.
hashes: $(INSTALLED)
	$(PYTHON) -I -S deploy/hashes.py add $(REPORTS)

# The installed packages with versions, licenses and dependencies, in the format of `pip inspect`: build/installed.json.
bill: $(INSTALLED)
	mkdir -p build
	$(BIN)/python -m pip inspect > build/installed.json

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: setup
	$(BIN)/python docs/site/pictures.py
	$(BIN)/python docs/site/page_pictures.py

ui: setup
	$(BIN)/chorale ui

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
