# Each target makes its own virtual environment when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench docs clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	# compat: a plain path instead of a finder that costs every start of Python 10 ms
	$(BIN)/python -m pip install --quiet --config-settings editable_mode=compat --editable . --group dev
	touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not lab" tests

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/lab/mpi_programs.py
	$(BIN)/python -m pytest -n 2 tests

bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/preflight.py
	$(BIN)/python benchmarks/localise.py
	$(BIN)/python benchmarks/gang_scale.py
	$(BIN)/python benchmarks/silent_names.py
	$(BIN)/python benchmarks/mpi.py
	$(BIN)/python benchmarks/fetch.py

docs: $(READY)
	$(BIN)/python docs/reference.py > docs/reference.md

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
