# The commands of the README. Each makes what it needs, in virtual environments below VENVS; nothing has to be installed
# before but Python >= 3.10 and a C++17 compiler.
PYTHON ?= python3
VENVS ?= .venvs
# Not compiled: the programs import a part of what is installed, and compile that, once. Where Python is told to keep nothing
# of it, as in many containers, each of hundreds of processes would compile MindSpore anew, in two seconds.
INSTALL := pip install -q --no-compile
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
# The MindSpore of tests and benchmarks; CONSTRAINTS= takes the newest.
CONSTRAINTS ?= -c tests/constraints.txt
NATIVE := CMakeLists.txt pyproject.toml $(shell find csrc kernels -type f)
SOURCES := $(NATIVE) $(shell find python -type f -not -name '*.so' -not -path '*/__pycache__/*')
EMULATORS := $(shell find tests/emulators -type f)
# Ninja does not take make's jobs through pip and CMake, and would start more than there are cores, in each build.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: dev dev-mindspore train train-distributed test test-quick test-all test-python test-core test-torch test-native test-nvcc fuzz fuzz-torch fuzz-asan loops kernels bench bench-levels bench-networks lint style format docs notebook clean

# An editable build to work with: the core on the baseline instruction set, and what its tests need. Python files are used
# where they are; after a change of C++ call it again.
dev: $(VENVS)/dev/installed

# The same with MindSpore, which takes 2.5 GB.
dev-mindspore: $(VENVS)/dev/mindspore

train: $(VENVS)/train/installed
	$(VENVS)/train/bin/boost-ext train $(ARGS)

# The same network on two processes of this machine, data parallel.
train-distributed: $(VENVS)/train/installed
	$(VENVS)/train/bin/boost-ext train --ranks 2 --mode graph $(ARGS)

# Two parts at a time, with the environments that they need: one part compiles while another waits for packages or for
# ranks. nvcc's build is done when test-core compares the emulated kernels with it, and test-core, which fills two cores, is
# what may be left at the end.
test:
	+$(MAKE) -j 2 -O TIER='$(TIER)' test-python test-nvcc test-native test-torch test-core

# Of the editable build, with one network that MindSpore compiles.
test-quick: $(VENVS)/dev/mindspore
	$(VENVS)/dev/bin/python -m pytest -n 2 -q -m "not exhaustive and not slow" tests/ops $(wildcard tests/test_*.py) \
	  "tests/ms/test_step.py::test_trains_like_mindspore[graph-adam-step]" $(ARGS)

# With the cases that run the same code as others.
test-all: TIER :=
test-all: test

# Two at a time, and before the other parts: a rank that waits for one without a core spins, for four times its own CPU time.
SECOND := nice -n 10
# A thread of NumPy's that has no core spins, too.
BLAS := OPENBLAS_NUM_THREADS=1
TIER := -m "not exhaustive"
# MindSpore's threads spin, too, which takes a sixth of the time on two cores: tests/conftest.py has ops run in the thread
# that calls them. The files that read MindSpore's memory behind its back are run with its threads as well.
WITH_THREADS := $(addprefix tests/ms/,test_native.py test_ops_on_tensors.py test_timestamp.py)
test-python: $(VENVS)/test/installed
	$(BLAS) BOOST_EXT_OBJECTS=$(CURDIR)/build/wheel $(VENVS)/test/bin/python -m pytest -n 2 \
	  --dist loadfile --durations=30 --durations-min=5 $(TIER) $(ARGS)
	$(BLAS) MS_DEV_HOST_BLOCKING_RUN=0 $(VENVS)/test/bin/python -m pytest -q -n 2 --dist loadfile $(TIER) $(WITH_THREADS)

# The core, without MindSpore, on NumPy 2, with the kernels of devices on our emulators: what takes NumPy's arrays, and
# all ops on CUDA arrays.
NUMPY2 := $(addprefix tests/ops/test_,arrays.py arguments.py exchange.py frameworks.py layouts.py overlaps.py shapes.py \
  optimizer_state.py)
test-core: $(VENVS)/core/installed
	build/emulated/cuda_emulator_tests
	$(BLAS) $(SECOND) $(VENVS)/core/bin/python -m pytest -n 2 --dist worksteal $(NUMPY2) tests/ascend tests/cuda tests/test_pca.py \
	  tests/test_pca_file.py tests/test_pca_span.py -q $(TIER)
	$(BLAS) $(SECOND) $(VENVS)/core/bin/python -m pytest -n 2 --dist worksteal tests/ops -q --device cuda $(TIER)

# What needs PyTorch, which no other environment has.
test-torch: $(VENVS)/torch/installed
	$(BLAS) $(SECOND) $(VENVS)/torch/bin/python -m pytest -q tests/pytorch tests/ops/test_torch.py \
	  "tests/test_example_scripts.py::test_runs[pytorch_loop]" "tests/docs/test_pages.py::test_a_page[docs/torch.md]" \
	  "tests/docs/test_pages.py::test_a_page[docs/health.md]"

# The ops from C++ under the address, undefined-behaviour and thread sanitizers; under the last one for one instruction
# set, since who waits for whom is the same in all. It needs memory at fixed addresses, hence setarch -R. The Ascend
# kernels on their emulator, and the emulator of CUDA, under the first two.
test-native: $(VENVS)/lint/installed
	for preset in asan tsan; do \
	  $(VENVS)/lint/bin/cmake --preset $$preset -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENVS))/lint/bin/ninja >/dev/null && \
	  $(SECOND) $(VENVS)/lint/bin/cmake --build build/$$preset && \
	  $(SECOND) setarch "$$(uname -m)" -R build/$$preset/native_tests || exit 1; \
	done
	build/asan/ascend_tests
	build/asan/cuda_emulator_tests
	$(VENVS)/lint/bin/cmake -P tests/ascend/toolkit.cmake

# The CUDA kernels by nvcc, and the ops from C++ in that build: it must start without a driver. For all architectures from
# the oldest one's PTX, since none has code of its own, and without the optimizations that take four times as long: nothing
# runs on a device here.
test-nvcc: $(VENVS)/lint/installed $(VENVS)/wheel/built
	if command -v nvcc >/dev/null; then \
	  quick="$$(nvcc --help | grep -o -m 1 -e '--Ofast-compile')"; \
	  $(VENVS)/lint/bin/cmake --preset cuda -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENVS))/lint/bin/ninja \
	    "-DCMAKE_CUDA_FLAGS=$${quick:+$$quick=max} -gencode=arch=compute_80,code=[sm_80,sm_90,sm_100]" \
	    -DCMAKE_CUDA_ARCHITECTURES=80-virtual "-DBOOST_EXT_OBJECTS_OF=$(WHEEL_BUILD)" >/dev/null && \
	  $(SECOND) $(VENVS)/lint/bin/cmake --build build/cuda && build/cuda/native_tests; \
	else echo "no nvcc here: the CUDA kernels were compiled for the emulator only"; fi

# Calls and files that nobody would write, another selection each time; ARGS="--seconds 60" for each target.
fuzz: $(VENVS)/test/installed
	$(VENVS)/test/bin/python -m tests.fuzz $(ARGS)

# The part of it that needs PyTorch; test-torch runs some of the same.
fuzz-torch: $(VENVS)/torch/installed
	$(BLAS) $(VENVS)/torch/bin/python -m tests.fuzz $(ARGS) torch

# The ops' part of it in a module with the address and undefined-behaviour sanitizers, beside test-native's build: 21 files
# more. Their libraries come before Python's.
FUZZED := build/asan/python
PRELOADED = $(foreach library,asan stdc++,$(shell $(CXX) -print-file-name=lib$(library).so))
fuzz-asan: $(VENVS)/test/installed $(VENVS)/lint/installed
	$(VENVS)/lint/bin/cmake --preset asan -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENVS))/lint/bin/ninja \
	  -DBOOST_EXT_PYTHON=ON -DPython_EXECUTABLE=$(abspath $(VENVS))/test/bin/python \
	  -Dpybind11_DIR="$$($(VENVS)/lint/bin/python -m pybind11 --cmakedir)" >/dev/null
	$(VENVS)/lint/bin/cmake --build build/asan --target _core
	rm -rf $(FUZZED) && mkdir -p $(FUZZED) && cp -r python/boost_ext $(FUZZED)
	cp --remove-destination build/asan/_core*.so $(FUZZED)/boost_ext
	PYTHONPATH=$(FUZZED) PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 LD_PRELOAD="$(PRELOADED)" \
	  $(VENVS)/test/bin/python -m tests.fuzz $(ARGS) ops

# The inner loops of the kernels beside benchmarks/loops.csv, by llvm-mca; those of build/aarch64 if they are built.
loops: $(VENVS)/test/installed
	$(VENVS)/test/bin/python -m benchmarks.loops $(ARGS)

# The machine code of the CUDA kernels beside benchmarks/cuda/kernels.csv, where nvcc and nvdisasm are.
kernels: $(VENVS)/test/installed
	$(VENVS)/test/bin/python -m benchmarks.cuda.kernels $(ARGS)

bench: $(VENVS)/bench/installed
	$(VENVS)/bench/bin/python -m benchmarks $(ARGS)

# The boost levels on residual networks: half an hour on two cores.
bench-levels: $(VENVS)/bench/installed
	$(VENVS)/bench/bin/python -m benchmarks.levels $(ARGS)

# Whole trainings of public networks beside mindspore.Model: an hour and a half on two cores.
bench-networks: $(VENVS)/bench/installed
	$(VENVS)/bench/bin/python -m benchmarks.networks $(ARGS)

lint: style $(VENVS)/test/installed
	$(VENVS)/test/bin/python -m mypy
	$(VENVS)/lint/bin/python tests/typed.py --python $(VENVS)/test/bin/python
	$(VENVS)/test/bin/python -m mypy.stubtest --ignore-missing-stub --allowlist tests/stubtest_allowlist.txt boost_ext._core

# The part of it that needs no build.
style: $(VENVS)/lint/installed
	$(VENVS)/lint/bin/ruff check .
	$(VENVS)/lint/bin/ruff format --check .
	$(VENVS)/lint/bin/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

format: $(VENVS)/lint/installed
	$(VENVS)/lint/bin/ruff check --fix .
	$(VENVS)/lint/bin/ruff format .
	$(VENVS)/lint/bin/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

# The documentation site, in build/site. Neither the package nor MindSpore is needed: the docstrings are read from the
# sources.
docs: $(VENVS)/docs/installed
	NO_MKDOCS_2_WARNING=1 $(VENVS)/docs/bin/mkdocs build --strict

# The notebook of an example, from its script.
KERNEL := {"jupytext": null, "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
notebook: $(VENVS)/lint/installed
	$(VENVS)/lint/bin/python -m $(INSTALL) jupytext
	$(VENVS)/lint/bin/jupytext --to notebook --update-metadata '$(KERNEL)' examples/numpy_ops.py

clean:
	rm -rf build dist $(VENVS)

# One environment a purpose, and one wheel for all; an environment is made again into itself when a source changes.
$(VENVS)/%/bin/python:
	$(PYTHON) -m venv $(VENVS)/$*
	$(VENVS)/$*/bin/python -m $(INSTALL) --upgrade pip

# Where its objects are, which other builds of the tests link.
WHEEL_BUILD = $(shell ls -dt $(CURDIR)/build/wheel/* | head -n 1)

$(VENVS)/wheel/built: $(SOURCES) | $(VENVS)/wheel/bin/python
	rm -rf $(VENVS)/wheel/dist
	$(VENVS)/wheel/bin/python -m pip wheel -q --no-deps -w $(VENVS)/wheel/dist .
	touch $@

# Of the same version as the last one: pip takes it for installed, unless it is told otherwise.
$(VENVS)/train/installed $(VENVS)/test/installed $(VENVS)/bench/installed: $(VENVS)/%/installed: $(VENVS)/wheel/built | $(VENVS)/%/bin/python
	$(VENVS)/$*/bin/python -m $(INSTALL) --no-deps --force-reinstall $(VENVS)/wheel/dist/*.whl
	$(VENVS)/$*/bin/python -m $(INSTALL) $(CONSTRAINTS) "$$(echo $(VENVS)/wheel/dist/*.whl)[$*]"
	touch $@

# PyTorch without CUDA where its wheel is at hand.
$(VENVS)/torch/installed: $(VENVS)/wheel/built | $(VENVS)/torch/bin/python
	$(VENVS)/torch/bin/python -m $(INSTALL) --no-deps --force-reinstall $(VENVS)/wheel/dist/*.whl
	$(VENVS)/torch/bin/python -m $(INSTALL) $(CONSTRAINTS) "$$(echo $(VENVS)/wheel/dist/*.whl)[torch,test-core]" \
	  'markdown-it-py>=3' 'psutil>=5.9' scikit-learn 'jax; python_version >= "3.11"'
	touch $@

# Without build isolation: the tools stay where they are, so that a second build compiles only what has changed.
$(VENVS)/dev/tools: | $(VENVS)/dev/bin/python
	$(VENVS)/dev/bin/python -m $(INSTALL) 'scikit-build-core>=0.10' 'pybind11>=2.13' 'cmake>=3.21' ninja
	touch $@

$(VENVS)/dev/installed: $(NATIVE) | $(VENVS)/dev/tools
	$(VENVS)/dev/bin/python -m $(INSTALL) --no-build-isolation -e '.[test-core]' -C build-dir=build/dev \
	  -C cmake.define.BOOST_EXT_BASELINE_ONLY=ON -C cmake.define.BOOST_EXT_UNITY=OFF \
	  $(if $(shell command -v ccache),-C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
	touch $@

$(VENVS)/dev/mindspore: pyproject.toml | $(VENVS)/dev/installed
	$(VENVS)/dev/bin/python -m $(INSTALL) $(CONSTRAINTS) 'boost_ext[test]'
	touch $@

# In a build folder of its own, since its kernels of devices are made for the emulators; after the wheel, which is made of
# the same sources in place.
$(VENVS)/core/installed: $(SOURCES) $(EMULATORS) | $(VENVS)/core/bin/python $(VENVS)/wheel/built
	$(SECOND) $(VENVS)/core/bin/python -m $(INSTALL) '.[test-core]' 'numpy>=2' scikit-learn \
	  -C build-dir=build/emulated -C install.strip=false -C cmake.define.BOOST_EXT_CUDA_EMULATOR=ON \
	  -C cmake.define.BOOST_EXT_ASCEND_EMULATOR=ON -C 'cmake.define.BOOST_EXT_OBJECTS_OF=$(WHEEL_BUILD)'
	touch $@

$(VENVS)/lint/installed: pyproject.toml | $(VENVS)/lint/bin/python
	$(VENVS)/lint/bin/python -m $(INSTALL) 'ruff>=0.6' 'clang-format>=18' 'cmake>=3.21' ninja 'pybind11>=2.13' 'pyright[nodejs]>=1.1.414'
	touch $@

$(VENVS)/docs/installed: pyproject.toml | $(VENVS)/docs/bin/python
	$(VENVS)/docs/bin/python -m $(INSTALL) --group docs
	touch $@
