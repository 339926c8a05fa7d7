# Every target makes the environment it needs; nothing but Python 3.11+, make and git has to be there.
PYTHON ?= python3
# Where a virtual environment has its programs.
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
VENV := .venv
TORCH_VENV := .venv-torch
JAX_VENV := .venv-jax
BENCH_VENV := .venv-bench
BUILD_VENV := .venv-build
DOCS_VENV := .venv-docs
ARM := .arm
OLDEST_VENV := .venv-oldest
NEWEST_VENV := .venv-newest
# The ends of the range of Pythons: the oldest packages are built for no newer Python than 3.12.
OLDEST ?= python3.11
NEWEST ?= python3.14
PEERS := .peers
JOBS ?= 2
# Bytecode is made where a module is imported: most modules of PyTorch and JAX never are.
PIP := -m pip install --quiet --no-compile
PYTEST := -m pytest -n $(JOBS) --dist worksteal
SECONDS ?= 600

.PHONY: demo check docs test environments lint types unit test-torch test-triton test-cuda test-jax test-peers test-ort-training test-oldest test-newest test-arm test-avx2 test-slow fuzz fit peers bench wheels release clean help

help: ## what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

demo: $(VENV)/ready ## set up and run the main job: train a small network on handwritten digits; files in build/demo
	$(VENV)/$(BIN)/pullback train --into build/demo

check: $(VENV)/ready ## check the library against TF.js, ONNX Runtime and mathematics, one case in eight
	$(VENV)/$(BIN)/pullback check --quick

# Not --quiet: --strict does not see the warnings that it silences.
docs: $(DOCS_VENV)/ready ## the documentation as a site that needs no network, in build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/$(BIN)/python -m mkdocs build --strict
	@echo 'build/site/index.html is the start page'

test: lint types unit ## set up, lint, type-check, test

# Ahead of the tests, two at a time: make -j2 environments.
environments: $(VENV)/ready $(TORCH_VENV)/ready $(JAX_VENV)/ready $(DOCS_VENV)/ready

lint: $(VENV)/ready
	$(VENV)/$(BIN)/ruff check .
	$(VENV)/$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(VENV)/$(BIN)/mypy

unit: $(VENV)/ready
	$(VENV)/$(BIN)/python $(PYTEST)

# Passive: idle OpenMP threads of one worker would spin on the cores of the other.
test-torch: $(TORCH_VENV)/ready ## the tests that take PyTorch as an oracle, in an environment of their own
	OMP_WAIT_POLICY=PASSIVE $(TORCH_VENV)/$(BIN)/python $(PYTEST) -m 'torch and not slow'

test-triton: $(TORCH_VENV)/ready ## all tests of the kernels for GPUs, in Triton's interpreter: no GPU is needed
	$(TORCH_VENV)/$(BIN)/python $(PYTEST) -m torch tests/with_triton

# With a PyTorch for this GPU, which no environment made here has: PYTHON, with PyTorch, Triton, pytest and this package installed.
test-cuda: ## the kernels of the cuda backend on this machine's GPU, with compute-sanitizer's memcheck and racecheck where it is installed
	@if ! $(HAS_GPU); then echo 'there is no NVIDIA GPU here: nothing to test'; exit 0; fi; \
	set -ex; export TRITON_INTERPRET=0; $(ON_GPU); \
	if command -v compute-sanitizer >/dev/null; then \
		for tool in memcheck racecheck; do compute-sanitizer --tool $$tool --error-exitcode 1 $(ON_GPU); done; \
	else echo 'compute-sanitizer is not installed here: memory and races were not checked'; fi

# Asked of the driver itself.
HAS_GPU := $(PYTHON) -c "import ctypes as c; d = c.CDLL('libcuda.so.1'); n = c.c_int(); \
	exit(d.cuInit(0) or d.cuDeviceGetCount(c.byref(n)) or not n.value)" 2>/dev/null
ON_GPU := $(PYTHON) -m pytest -m torch tests/with_triton

test-jax: $(JAX_VENV)/ready ## the tests of pullback.jax, in an environment of their own
	$(JAX_VENV)/$(BIN)/python $(PYTEST) -m jax

test-peers: $(TORCH_VENV)/ready-peers ## the cases that PyTorch and ONNX test themselves with, on our ops
	$(TORCH_VENV)/$(BIN)/python $(PYTEST) -m peers

test-ort-training: $(VENV)/ready $(PEERS)/ort/ready ## our training graphs in the last ONNX Runtime that trains: the same gradients
	$(VENV)/$(BIN)/python tests/onnx_ort_training/compare.py $(PEERS)/ort/$(BIN)/python

test-oldest: $(OLDEST_VENV)/ready $(OLDEST_VENV)-jax/ready $(OLDEST_VENV)-torch/ready ## the tests on the oldest versions that are allowed; 3 GB to fetch
	$(OLDEST_VENV)/$(BIN)/python $(PYTEST)
	$(OLDEST_VENV)-jax/$(BIN)/python $(PYTEST) -m jax
	$(OLDEST_VENV)-torch/$(BIN)/python $(PYTEST) -m torch

test-newest: ## the tests on the newest Python, NEWEST=python3.14, and the newest versions there are for it
	$(MAKE) unit PYTHON=$(NEWEST) VENV=$(NEWEST_VENV)

test-arm: $(ARM)/ready build/shipped/aarch64/index.json ## the kernels on an emulated arm64: those of its wheel, since nothing compiles there
	PULLBACK_SHIP=aarch64 $(call unpack-wheel,aarch64)
	PYTHONPATH=$(ARM)/wheel-aarch64 $(ARM)/python $(ON_OTHER_CPUS)

test-avx2: $(ARM)/ready build/shipped/x86-64-v4/index.json build/shipped/x86-64-v3/index.json ## the same with the wheel's code for AVX2, and a check on an emulated CPU that has no more
	PULLBACK_SHIP=x86_64 $(call unpack-wheel,x86_64)
	PULLBACK_LEVEL=x86-64-v3 PYTHONPATH=$(ARM)/wheel-x86_64 $(VENV)/$(BIN)/python $(ON_OTHER_CPUS)
	PULLBACK_BACKEND=cpu PYTHONPATH=$(ARM)/wheel-x86_64 $(ARM)/python-haswell -W error::RuntimeWarning -m pullback check --quick

# The tests of the kernels themselves, of the threads and of the guard pages around arrays. (Not on the emulated CPU with AVX2: QEMU's
# loads under masks read the lanes that are masked out, which no real one does.)
ON_OTHER_CPUS := -m pytest -p no:cacheprovider -n $(JOBS) --dist worksteal tests/cpu/pool tests/cpu/conv/test_dense.py \
	tests/cpu/depthwise tests/cpu/winograd tests/cpu/elementwise tests/cpu/norm tests/cpu/test_bounds.py tests/cpu/test_by_name.py \
	tests/cpu/test_crop.py tests/cpu/test_nonfinite.py tests/cpu/engine/test_threads.py tests/cpu/engine/test_recycling.py \
	tests/cpu/engine/test_records.py

# The wheel of an architecture, built and unpacked beside the environment.
unpack-wheel = $(BUILD_VENV)/$(BIN)/python -m build --no-isolation --wheel --outdir $(ARM)/wheel-$(1).whl && \
	rm -rf $(ARM)/wheel-$(1) && $(VENV)/$(BIN)/python -m zipfile -e $(ARM)/wheel-$(1).whl/*.whl $(ARM)/wheel-$(1) && \
	rm -rf $(ARM)/wheel-$(1).whl

test-slow: $(VENV)/ready ## the soak tests
	$(VENV)/$(BIN)/python -m pytest -m slow

fuzz: $(VENV)/ready ## random calls against the reference, for SECONDS=600 seconds; SEED=7 repeats a run, FUZZ='--op conv' narrows
	$(VENV)/$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(FUZZ)

fit: $(VENV)/ready ## measure the numbers of cpu/*/tuning.py on this machine, beside those in use
	$(VENV)/$(BIN)/python tools/fit.py
	$(VENV)/$(BIN)/python tools/sweep.py

peers: $(PEERS)/ort/ready $(PEERS)/tfjs/ready ## the slow systems of the benchmark, ONNX Runtime's training build and TF.js (needs node)

bench: $(BENCH_VENV)/ready ## time the ops against PyTorch, JAX and TensorFlow (BENCH='--op avg_pool_grad' narrows)
	$(BENCH_VENV)/$(BIN)/pullback bench $(BENCH)

# Everything that Linux users get; about half an hour on 2 cores, and a few minutes after a small change.
wheels: build/shipped/x86-64-v4/index.json build/shipped/x86-64-v3/index.json build/shipped/aarch64/index.json ## the wheels, with kernels for AVX-512, AVX2 and NEON
	PULLBACK_SHIP=x86_64 $(BUILD_VENV)/$(BIN)/python -m build --no-isolation --wheel --outdir dist
	PULLBACK_SHIP=aarch64 $(BUILD_VENV)/$(BIN)/python -m build --no-isolation --wheel --outdir dist
	$(BUILD_VENV)/$(BIN)/python -m build --no-isolation --wheel --outdir dist
	ls -l dist

release: $(BUILD_VENV)/ready ## build what is published and try each file in a fresh environment without network
	$(BUILD_VENV)/$(BIN)/python tools/release.py

# Always asked for: the tool itself knows what has changed.
build/shipped/%/index.json: $(BUILD_VENV)/ready FORCE
	$(BUILD_VENV)/$(BIN)/python tools/build_kernels.py --level $* --into build/shipped --jobs $(JOBS)

FORCE:

$(DOCS_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/$(BIN)/python $(PIP) --editable '.[docs]'
	touch $@

$(BUILD_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(BUILD_VENV)
	$(BUILD_VENV)/$(BIN)/python $(PIP) --editable '.[build]'
	touch $@

# Only in this order: a newer environment of the host changes nothing in this one.
$(ARM)/ready: pyproject.toml tools/arm_environment.py | $(VENV)/ready
	$(VENV)/$(BIN)/python tools/arm_environment.py $(ARM)

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/$(BIN)/python $(PIP) --editable '.[cli,test,test-train,lint,examples,train,images]'
	touch $@

# pip, not another installer: it takes the CPU build of PyTorch where one lies on disk.
$(TORCH_VENV)/ready: pyproject.toml tools/torch.txt
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/$(BIN)/python $(PIP) -c tools/torch.txt --editable '.[cli,test,test-exports,torch,onnx,cuda]'
	touch $@

$(TORCH_VENV)/ready-peers: $(TORCH_VENV)/ready
	$(TORCH_VENV)/$(BIN)/python $(PIP) -c tools/torch.txt --editable '.[cli,test,test-exports,torch,onnx,cuda,peers]'
	touch $@

$(JAX_VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(JAX_VENV)
	$(JAX_VENV)/$(BIN)/python $(PIP) --editable '.[cli,test,jax,examples-jax]'
	touch $@

$(OLDEST_VENV)-jax/ready: FRAMEWORK := ,jax,examples-jax
$(OLDEST_VENV)-torch/ready: FRAMEWORK := ,torch,onnx,test-exports
# The oldest PyTorch is on the index as a CUDA build alone, which cannot be imported without the libraries that pip fetches with it.
$(OLDEST_VENV)/ready $(OLDEST_VENV)-jax/ready $(OLDEST_VENV)-torch/ready: pyproject.toml tools/oldest.txt
	$(OLDEST) -m venv $(@D)
	$(@D)/$(BIN)/python $(PIP) -c tools/oldest.txt --editable '.[cli,test$(FRAMEWORK)]'
	touch $@

# TensorFlow is the one peer that is often late for a new Python: the benchmark runs without it.
$(BENCH_VENV)/ready: pyproject.toml tools/bench-lock.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/$(BIN)/python $(PIP) -c tools/bench-lock.txt --editable '.[cli,bench,bfloat16]'
	$(BENCH_VENV)/$(BIN)/python $(PIP) -c tools/bench-lock.txt --editable '.[bench-tensorflow]' || echo 'no TensorFlow for this Python'
	touch $@

# The last build with gradient kernels, with the NumPy of its time.
$(PEERS)/ort/ready:
	$(PYTHON) -m venv $(PEERS)/ort
	$(PEERS)/ort/$(BIN)/python $(PIP) onnxruntime-training-cpu==1.19.2 onnx 'numpy<2'
	touch $@

$(PEERS)/tfjs/ready:
	npm install --silent --no-fund --no-audit --prefix $(PEERS)/tfjs @tensorflow/tfjs-core@4.22.0 @tensorflow/tfjs-backend-cpu@4.22.0
	touch $@

clean: ## remove the environments and caches
	rm -rf $(VENV) $(TORCH_VENV) $(JAX_VENV) $(BENCH_VENV) $(OLDEST_VENV)* $(NEWEST_VENV) $(BUILD_VENV) $(DOCS_VENV) $(ARM) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
