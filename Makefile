# Sets itself up: each target makes .venv with what it needs and remembers that in a stamp.
# Needs Python >= 3.11 with venv and headers, a C compiler, and a package index that pip knows.

TORCH  ?= torch==2.13.0
PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13 python3.14,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
JOBS   ?= 2
FUZZ_COUNT    ?= 1000000
FUZZ_SECONDS  ?= 3600
FUZZ_KINDS    ?=
BENCH_SECONDS ?= 300
SANITIZERS    ?= address,undefined thread

SHELL  := bash
BIN    := .venv/bin
STAMP  := .venv/stamp
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -ra
# Compiled code is built at installation, so a change of it installs again.
BUILT  := pyproject.toml setup.py $(shell find qir -name '*.[chi]' -o -name '*.inc' -o -name '*.pyx' -o -name '*.px[di]')
C      := $(shell find qir/_kernels tests/kernels/twins -name '*.[ch]' -o -name '*.inc')
# What runs steps and statistics in threads, for the thread sanitizer.
THREADED := tests/kernels/test_plan.py tests/kernels/test_misuse.py tests/kernels/test_floats.py tests/kernels/test_epilogues.py
# Its processes are forked after onnxruntime has started threads; the sanitizer then ends any child
# that starts one of its own ("dup thread"), as Python's would.
THREADED += --deselect tests/kernels/test_misuse.py::test_random_mistakes_are_refused_or_understood
CYTHON := $(shell find qir -name '*.pyx' -o -name '*.pxd')

# Names MXNet's Python, in an environment that is made if it is not there; in a line why there is none.
MXNET = lab="$(QIR_MXNET)"; test -n "$$lab" || lab=build/oracles/mxnet/bin/python; \
	test -x "$$lab" || { of=$$(for name in python3.11 python3.10 python3.9 python3.8; do \
		$$name -c '' 2>/dev/null && echo $$name && break; done); \
		test -n "$$of" && $$of -m venv build/oracles/mxnet && \
		build/oracles/mxnet/bin/pip install -q mxnet==1.9.1 "numpy<1.24" scipy || \
		echo "no MXNet: it needs a Python from 3.8 to 3.11 and mxnet 1.9.1" >&2; }; \
	unset QIR_MXNET; test ! -x "$$lab" || export QIR_MXNET="$$(realpath -s "$$lab")"

# Tests start hundreds of Python processes: what the first compiles, the others load.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check test-zoo test-loopback test-all bench fuzz sanitize lint format docs counts train clean matrix oracle-tflite oracle-ipex oracle-itex oracle-mxnet

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
	@echo; echo "  TORCH=$(TORCH)  PYTHON=$(PYTHON)  JOBS=$(JOBS)"

demo: $(STAMP)/demo  ## quantize the digits network and compare it with onnxruntime
	@$(BIN)/python examples/digits/demo.py

test: $(STAMP)/test  ## every test but the long ones, at most six cases of each, drawn by SEED; some 12 minutes
	@$(PYTEST) -m "not long" --cases 6

check: $(STAMP)/test  ## the fast tests, a case of each, without comparisons with runtimes
	@$(PYTEST) -m "not slow and not long" --cases 1 --ignore tests/differential

test-zoo: $(STAMP)/test  ## well-known networks of each framework, run there and compared; under 10 minutes
	@$(MXNET); $(PYTEST) tests/zoo tests/backends/tensorflow/test_zoo.py \
		tests/backends/mxnet/test_int8.py::test_mxnet_computes_what_is_predicted

test-loopback: $(STAMP)/test  ## the fast tests that run programs, each sent out by a plugin's target and back; some 20 minutes
	@$(PYTEST) --whole -m "not slow and not long" --through loopback tests/reference tests/backends tests/differential

test-all: $(STAMP)/test  ## every test, then sanitizers, fuzzing and benchmarks; writes docs/test-all.md
	@$(BIN)/python -m tests.everything -n $(JOBS) --dist loadfile --no-loadscope-reorder -ra

bench: $(STAMP)/bench  ## speed of kernels, of whole networks and of the language
	@for script in $$(find benchmarks -name 'bench_*.py' | sort); do \
		echo "== $$script"; case $$script in *quality*|*engine*) set -- --quick;; *) set --;; esac; \
		timeout $(BENCH_SECONDS) $(BIN)/python $$script "$$@" || exit; done

fuzz: $(STAMP)/test  ## a million broken texts, files, models, odd calls; FUZZ_COUNT of them, FUZZ_SECONDS at most
	@$(BIN)/python -m tests.fuzz -j $(JOBS) $(FUZZ_KINDS:%=--kind %) \
		--count $(FUZZ_COUNT) --seconds $(FUZZ_SECONDS)

sanitize: $(STAMP)/test  ## the compiled code under the address, undefined-behaviour and thread sanitizers
	@for sanitizers in $(SANITIZERS); do \
		rm -rf build/sanitize && mkdir -p build/sanitize && \
		cp -r qir frontends backends tests pyproject.toml setup.py README.md LICENSE build/sanitize && \
		find build/sanitize -name '*.so' -delete && cd build/sanitize && \
		QIR_SANITIZE=$$sanitizers $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace || exit; \
		case $$sanitizers in \
			thread) libraries=tsan; tests="$(THREADED)";; \
			*) libraries="asan ubsan"; tests="tests/kernels tests/calibration";; \
		esac; \
		env PYTHONPATH=. PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
			TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:ignore_noninstrumented_modules=1:allocator_may_return_null=1 \
			LD_PRELOAD="$$(for name in $$libraries; do printf '%s ' "$$(gcc -print-file-name=lib$$name.so)"; done)" \
			$(CURDIR)/$(BIN)/python -m pytest -q -s $$tests || exit; \
		cd $(CURDIR); \
	done

lint: export PATH := $(CURDIR)/$(BIN):$(PATH)
lint: $(STAMP)/test  ## what tests/test_style.py checks, tool by tool
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/cython-lint $(CYTHON) && $(BIN)/clang-format --dry-run -Werror $(C)

format: $(STAMP)/test  ## put Python and C into the house's form
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format . && $(BIN)/clang-format -i $(C)

docs: $(STAMP)/test  ## write the pages that are made from the code
	@for page in tests.pages tests.ir.test_ops_page tests.ir.test_verify_page \
		tests.frontends.onnx.conformance tests.frontends.onnx.coverage tests.frontends.torch.support_page tests.backends.tensorflow.coverage tests.differential.onnxruntime.tools_page tests.numerics_page tests.versions_page tests.differential.registered tests.picture_of_steps \
		tests.mutation.page tests.mutation.indistinct; do \
		$(BIN)/python -m $$page || exit; done

counts: $(STAMP)/test  ## count what the tests compare rule by rule, for docs/reference/numerics.md
	@$(PYTEST) -q -m "not long" --counts tests/differential && $(BIN)/python -m tests.differential.poor && $(BIN)/python -m tests.numerics_page

train: $(STAMP)/test  ## train the demo's network again
	@$(BIN)/python examples/digits/train.py

oracle-tflite:  ## record what TensorFlow Lite and LiteRT compute, each in an environment of its own
	@for want in tensorflow-cpu==2.21.0 ai-edge-litert==2.3.0; do \
		lab=build/oracles/$${want%%=*}; test -x $$lab/bin/python || $(PYTHON) -m venv $$lab; \
		$$lab/bin/pip install -q "$$want" && $$lab/bin/python -m tests.oracles.tflite_vectors || exit; done
	@build/oracles/ai-edge-litert/bin/python -m tests.oracles.tflite_operators 2> /dev/null

oracle-ipex: $(STAMP)/test  ## record what IPEX 2.8 computes, in an environment of its own of 7 GB (15 minutes), or pack FROM=DIR
	@lab=build/oracles/ipex; from="$(FROM)"; stay="the recorded results stay"; \
	of=$$(for name in python3.11 python3.12 python3.13; do \
		$$name -c '' 2>/dev/null && echo $$name && break; done); \
	if test -z "$$from"; then \
		free=$$(df -Pk . | awk 'NR == 2 {print int($$4 / 1048576)}'); \
		test "$$free" -ge 16 || { echo "it takes 16 GB of disk, $$free are free: $$stay" >&2; exit 1; }; \
		grep -qs avx512_vnni /proc/cpuinfo || { echo "no AVX512-VNNI here: $$stay" >&2; exit 1; }; \
		test -n "$$of" || { echo "no Python from 3.11 to 3.13 found: $$stay" >&2; exit 1; }; \
		test -x $$lab/bin/python || $$of -m venv $$lab || exit; \
		$$lab/bin/pip install -q torch==2.8.0 intel-extension-for-pytorch==2.8.0 numpy || \
			{ echo "torch 2.8.0 and its extension cannot be had: $$stay" >&2; exit 1; }; \
		from=$$lab/out; rm -rf $$from; \
		ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI $$lab/bin/python -m tests.oracles.ipex_vectors $$from || exit; \
	fi; \
	$(BIN)/python -m tests.oracles.ipex_pack "$$from" || exit; \
	test -n "$(FROM)" || ATEN_CPU_CAPABILITY=avx512_vnni ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI \
		$$lab/bin/python -m tests.oracles.ipex_kernels tests/differential/vectors/ipex/kernels.npz || exit; \
	test -n "$(FROM)" || ! grep -qs avx512_fp16 /proc/cpuinfo || env -u ATEN_CPU_CAPABILITY \
		$$lab/bin/python -m tests.oracles.ipex_kernels tests/differential/vectors/ipex/woq.npz || exit; \
	test -n "$(FROM)" || $$lab/bin/python -m tests.oracles.ipex_registered \
		tests/differential/vectors/ipex/registered.txt || exit; \
	test -n "$(FROM)" || QIR_IPEX=$$lab/bin/python $(BIN)/python -m tests.oracles.ipex_programs || exit; \
	test -n "$(FROM)" || ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI QIR_IPEX=$$lab/bin/python \
		$(BIN)/python -m tests.matrix.records || exit; \
	test -n "$(FROM)" || QIR_IPEX=$$lab/bin/python $(BIN)/python -m tests.oracles.ipex_recipes

oracle-itex: $(STAMP)/test  ## record what Intel's last TensorFlow wheel registers and computes (Python 3.11, 1.5 GB)
	@lab=build/oracles/itex; out=tests/differential/vectors/itex; stay="the recorded results stay"; \
	python3.11 -c '' 2>/dev/null || { echo "no Python 3.11 found: $$stay" >&2; exit 1; }; \
	test -x $$lab/bin/python || python3.11 -m venv $$lab || exit; \
	$$lab/bin/pip install -q intel-tensorflow==2.14.0 "numpy<2" || \
		{ echo "intel-tensorflow 2.14.0 cannot be had: $$stay" >&2; exit 1; }; \
	$(BIN)/python -m tests.oracles.itex_vectors write $$out && \
		$$lab/bin/python -m tests.oracles.itex_vectors run $$out

oracle-mxnet:  ## record what MXNet 1.9.1 computes, in an environment of its own (Python up to 3.11)
	@lab=build/oracles/mxnet; old=$$(for name in python3.11 python3.10 python3.9 python3.8; do \
		$$name -c '' 2>/dev/null && echo $$name && break; done); \
	test -n "$$old" || { echo "no Python from 3.8 to 3.11 found: the recorded results stay" >&2; exit 1; }; \
	test -x $$lab/bin/python || $$old -m venv $$lab; \
	$$lab/bin/pip install -q mxnet==1.9.1 "numpy<1.24" scipy && \
		$$lab/bin/python -W ignore -m tests.oracles.mxnet_vectors tests/differential/vectors/mxnet && \
		for part in operators quantized files zoo; do \
			$$lab/bin/python -W ignore -m tests.oracles.mxnet_$$part tests/frontends/mxnet/recorded || exit; \
		done && \
		QIR_MXNET=$$lab/bin/python $(BIN)/python -m tests.oracles.mxnet_written tests/backends/mxnet/recorded

matrix: $(STAMP)/test  ## run the five rows in their frameworks and write docs/reference/five-rows.md; IPEX from records
	@$(MXNET); test -n "$$QIR_MXNET" || exit 1; $(BIN)/python -m tests.matrix

clean:  ## remove all that was built, .venv too
	@rm -rf .venv build dist *.egg-info .hypothesis
	@find qir frontends backends -name '*.so' -delete
	@find . -name __pycache__ -prune -exec rm -rf {} +

$(STAMP)/venv:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found: name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -q "setuptools>=77" "cython>=3.1"
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/demo: $(STAMP)/venv $(BUILT)
	@echo "setting up .venv for the demo"
	@$(BIN)/pip install -q --no-build-isolation -e ".[demo]"
	@touch $@

# Named after the requirement, so that another TORCH is installed when it is asked for.
TORCH_STAMP := $(STAMP)/torch-$(firstword $(shell echo '$(TORCH)' | cksum))
$(TORCH_STAMP): $(STAMP)/venv
	@echo "installing $(TORCH)"
	@rm -f $(STAMP)/torch-*
	@$(BIN)/pip install -q $(TORCH)
	@touch $@

$(STAMP)/test: $(TORCH_STAMP) $(BUILT)
	@echo "setting up .venv for the tests"
	@$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	@touch $@

$(STAMP)/bench: $(STAMP)/test
	@echo "setting up .venv for the benchmarks"
	@$(BIN)/pip install -q --no-build-isolation -e ".[bench]"
	@touch $@
