# `make setup` builds .venv from pyproject.toml and constraints.txt; every other target does so first if need be.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What an experiment is told beyond its protocol, e.g. make sweep ARGS="--quick --r 1 10".
ARGS ?=
# How large the model of `make squad` is: laptop, or full for an accelerator.
SCALE ?= laptop

.DEFAULT_GOAL := help
.PHONY: help setup sweep sweep-2proc step-size fig2 fig3 fig4 hatexplain sva squad table1 interventions theory bench examples notebook test lint types format check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with everything the project needs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qkdyn needs Python 3.11 or newer; make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

sweep: $(READY)  ## train the grid over r, seeds and parameterizations; figures and table in results/sweep
	$(BIN)/python -m experiments.sweep $(ARGS)

sweep-2proc: $(READY)  ## the quick sweep by two processes that meet on this machine
	$(BIN)/python -m qkdyn.train.launch 2 -- -m experiments.sweep --quick --out results/quick/sweep-2proc $(ARGS)

step-size: $(READY)  ## show that descent approaches the theory like O(eta); results/step_size
	$(BIN)/python -m experiments.step_size $(ARGS)

bench: $(READY)  ## measure speed, memory and checkpoints against baselines; results/bench
	$(BIN)/python -m benchmarks $(ARGS)

fig2: $(READY)  ## Figure 2 under a protocol: ARGS="--protocol as_coded|as_written|controlled"
	$(BIN)/python -m experiments.fig2_parameterizations $(ARGS)

fig3: $(READY)  ## Figure 3: the output-value circuit under fixed attention, with and without biases; results/fig3
	$(BIN)/python -m experiments.fig3_fixed_attention $(ARGS)

fig4: $(READY)  ## the scalar dynamics of Figure 4, in closed form and integrated; results/fig4_growth
	$(BIN)/python -m experiments.fig4_growth $(ARGS)

hatexplain: $(READY)  ## Table 1 on HateXplain: ARGS="--protocol as_coded|as_written|controlled", --layers 2|4, --tune, --data FOLDER
	$(BIN)/python -m experiments.table1_hatexplain $(ARGS)

sva: $(READY)  ## Table 1 on subject-verb agreement: ARGS="--protocol as_coded|as_written|as_written_sgd|controlled|controlled_all", --tune, --data FOLDER
	$(BIN)/python -m experiments.table1_sva $(ARGS)

squad: $(READY)  ## Table 1 on SQuAD: SCALE=laptop|full, ARGS="--protocol as_coded|as_written|controlled", --tune, --data FOLDER
	$(BIN)/python -m experiments.table1_squad --scale $(SCALE) $(ARGS)

table1: $(READY)  ## Tables 1 and 4 to 6 whole, from the results of the three above: --results FOLDER
	$(BIN)/python -m experiments.table1 $(ARGS)

interventions: $(READY)  ## what sharpens attention beside the ratio of rates: ARGS="--settings orthogonal tokens hatexplain-sgd hatexplain", --data FOLDER; results/interventions
	$(BIN)/python -m experiments.interventions $(ARGS)

theory: $(READY)  ## the paper's mathematics on numbers, one page of verdicts; results/theory
	$(BIN)/python -m experiments.theory $(ARGS)

examples: $(READY)  ## train a small language model at two ratios in Linen, NNX, Equinox and, where it is installed, PyTorch; results/quick/examples
	$(BIN)/python examples/language_linen.py --out results/quick/examples $(ARGS)
	$(BIN)/python examples/language_nnx.py --out results/quick/examples $(ARGS)
	$(BIN)/python examples/language_equinox.py --out results/quick/examples $(ARGS)
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; \
	then $(BIN)/python examples/pytorch_recipe.py --out results/quick/examples $(ARGS); \
	else echo "examples/pytorch_recipe.py left out: PyTorch, an extra, is not installed ($(BIN)/pip install torch)"; fi

notebook: $(READY)  ## run examples/choosing_r.ipynb again, which walks through docs/choosing_r.md, and keep what it shows
	$(BIN)/python examples/run_notebook.py $(ARGS)

test: $(READY)  ## run the test suite (ARGS="-k name" for a part of it); what is left out, and why, is listed at the end
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs $(ARGS)

lint: $(READY)  ## check style and format with ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)  ## check types with pyright
	$(BIN)/pyright

format: $(READY)  ## mend style and format where ruff can
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

check: lint types test  ## lint, types and tests

clean:  ## remove .venv and caches; results stay
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis *.egg-info
