# Each target makes its own virtual environment when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Most tests wait for something: on two cores four at a time take a seventh less time than three; five keep both cores busy
# all the time, for little more.
WORKERS ?= 4

# `make images BUILD="podman build"`: what builds an image, from which bases, under which name
BUILD ?= docker build
IMAGE ?= trainer-agent
PYTHON_IMAGE ?= python:3.12-slim-bookworm
TRAINING_IMAGE ?= pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime

.PHONY: demo test test-containers check bench docs images clean

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
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not lab and not containers" tests

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/lab/mpi_programs.py
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not containers" tests

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

images: VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' trainer_agent/__init__.py)
images: REVISION := $(shell git rev-parse HEAD)
images: AGENT := $(BUILD) -f Dockerfile.agent --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)
# not in the Dockerfile, where they would take the place of a training image's own
images: ABOUT := org.opencontainers.image
images: LABELS := --label $(ABOUT).title=trainer-agent \
	--label "$(ABOUT).description=Preflight, data and launch for the pods of Kubeflow TrainJobs" \
	--label $(ABOUT).licenses=Apache-2.0 --label $(ABOUT).version=$(VERSION) --label $(ABOUT).revision=$(REVISION)
images:
	$(AGENT) -t $(IMAGE) $(LABELS) .
	$(AGENT) -t $(IMAGE):torch --build-arg BASE_IMAGE=$(TRAINING_IMAGE) .
	$(AGENT) -t $(IMAGE):cache --build-arg EXTRAS=xet,cache $(LABELS) .
	$(BUILD) -t $(IMAGE)-dataset-initializer --build-arg AGENT_IMAGE=$(IMAGE):cache images/dataset-initializer
	$(BUILD) -t $(IMAGE)-model-initializer --build-arg AGENT_IMAGE=$(IMAGE) images/model-initializer
	$(BUILD) -t $(IMAGE)-torch --build-arg AGENT_IMAGE=$(IMAGE) --build-arg BASE_IMAGE=$(TRAINING_IMAGE) images/torch
	$(BUILD) -t $(IMAGE)-mpi --build-arg AGENT_IMAGE=$(IMAGE) --build-arg BASE_IMAGE=$(PYTHON_IMAGE) images/mpi

test-containers: $(READY)
	$(BIN)/python tests/containers/building.py
	$(BIN)/python -m pytest -n 2 --durations=0 --timeout 300 -m containers tests/containers

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
