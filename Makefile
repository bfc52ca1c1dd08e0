PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check golden bench bench-agent bench-storage bench-rules bench-probe bench-memory clean

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "gpudiag needs Python 3.10 or newer: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/gpudiag demo

test: $(READY)
	$(BIN)/pytest -q

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_docs.py tests/test_layers.py

golden: $(READY)
	GPUDIAG_WRITE_GOLDEN=1 $(BIN)/pytest -q -k golden

bench-rules: $(READY)
	$(BIN)/python -m bench.rules --write
	$(BIN)/python -m bench.rules.speed

bench-report: $(READY)
	$(BIN)/python -m bench.report

bench-memory: $(READY)
	$(BIN)/python -m bench.memory

clean:
	rm -rf $(VENV) build dist src/gpudiag.egg-info

bench-storage: $(READY)
	$(BIN)/python -m bench.storage --write

PEERS := .venvs/peers

bench-agent: $(READY) $(PEERS)/.ready
	$(BIN)/python -m bench.agent --peers $(PEERS)/bin --write

$(PEERS)/.ready:
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet nvitop-exporter gpustat
	@touch $@

# PROBE_PYTHON: an interpreter that has PyTorch
bench-probe: $(READY)
	$(BIN)/python bench/probe/__main__.py --python $(or $(PROBE_PYTHON),$(BIN)/python)
