# The first run of any target makes .venv and installs into it; later runs start at once.
# PYTHON=python3.12 chooses the interpreter, PIP_ARGS=... passes options to pip (another index).
PYTHON ?= python3
PIP_ARGS ?=
MODEL ?=
BIN := .venv/bin
READY := .venv/ready
PYTEST := $(BIN)/python -m pytest
# Neighbouring tests share what a process makes once, so a worker takes a run of them.
SPREAD := -n 2 --dist worksteal
ONLY ?=
# Workers and the processes that tests start would each compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: report test profile lint bench receipts clean

report: $(READY)
	$(BIN)/rowtwin report $(if $(MODEL),--model "$(MODEL)")

test: $(READY)
	$(PYTEST) $(SPREAD)

# In one process: how long collecting takes, then the slowest tests. ONLY=phases/p6_batched_attention
# narrows both.
profile: $(READY)
	$(PYTEST) --collect-only -q $(ONLY) | tail -1
	$(PYTEST) -q --durations=60 --durations-min=0.2 $(ONLY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy .

bench: $(READY)
	$(PYTEST) -o addopts="--strict-markers --strict-config -ra" -o python_files="bench_*.py" \
		--benchmark-only engine phases

receipts: $(READY)
	$(BIN)/rowtwin receipt

clean:
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks \
		reports/out rowtwin.egg-info
	find contracts engine falsifiers phases reports -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; PYTHON=... names one" >&2; exit 2; }
	@echo "Installing into .venv. To download: about 0.5 GB where pip finds a CPU build of torch,"
	@echo "about 3 GB where it takes the default build with CUDA. This happens once."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-c constraints.txt -e '.[lint,golden,test]'
	@touch $@
