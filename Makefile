# `make demo` and `make test` are the only commands a fresh machine needs: each sets up by itself first.
# Another torch: `make test TORCH=2.15.0` uses an environment of its own beside the default one.

PYTHON ?= python3
PINNED := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH  ?= $(PINNED)
VENV   := $(if $(filter $(PINNED),$(TORCH)),.venv,.venv-torch-$(TORCH))
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= 2
BROWSER := chromium chromium-driver fonts-dejavu-core

.PHONY: help setup browser demo test test-fast test-thorough lint format bench bench-minify bench-locate bench-frontend bench-light bench-false-alarms bench-corpus bench-hunt house clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY)  ## create the environment with everything for development

# Torch comes first and by an exact pin: anything looser would pull the newest build with its CUDA packages.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "torch==$(TORCH)"
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt hatchling editables
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

# Without fonts Chromium draws empty pages. Where it cannot be installed the tests of the page are skipped and say so.
browser:  ## Debian's Chromium, in which the tests open the report
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(BROWSER) >/dev/null; then :; \
	else echo "No Chromium: the tests of the report's page are skipped. As root: apt-get install $(BROWSER)"; fi

demo: $(READY)  ## the main job, end to end
	$(BIN)/python examples/demo.py

test: $(READY) browser  ## all tests: the fast ones first
	$(BIN)/python -m pytest -m 'not slow and not thorough' -n $(WORKERS) --dist worksteal
	$(BIN)/python -m pytest -m 'slow and not thorough' -n $(WORKERS) --dist worksteal

test-fast: $(READY)  ## only the tests that run no compiler
	$(BIN)/python -m pytest -m 'not slow and not thorough' -n $(WORKERS) --dist worksteal

test-thorough: $(READY)  ## the tests that take too long for CI: every known bug, caught, minified and located
	$(BIN)/python -m pytest -m thorough -n $(WORKERS) --dist worksteal

lint: $(READY)  ## ruff, mypy --strict, the direction of imports, private names of torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/torch_seams.py --check

format: $(READY)  ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## print the benchmark tables of docs/benchmarks.md that take minutes
	$(BIN)/python -m benchmarks

# An hour and more: `make bench-minify ARGS='--cases c01,191499_big'` for a few, ARGS=--resume to go on.
bench-minify: $(READY)  ## every failing program under torchrepro and under torch's own minifier
	$(BIN)/python -m benchmarks.minify --json .cache/bench-minify/results.jsonl --markdown --minify-options=--no-explain $(ARGS)

# A quarter of an hour: `make bench-locate ARGS='--cases 191499,192985'` for a few, ARGS=--resume to go on.
bench-locate: $(READY)  ## every failing program: the culprit found, against the known one
	$(BIN)/python -m benchmarks.locate --json .cache/bench-locate/results.jsonl --markdown $(ARGS)

# Half an hour: `make bench-frontend ARGS='--parts cost'` for a part, ARGS=--resume to go on.
bench-frontend: $(READY)  ## the front end and Dynamo: cost of a call, transformers models, a corpus of functions
	$(BIN)/python -m benchmarks.frontend --json .cache/bench-frontend/results.jsonl --markdown $(ARGS)

# Half an hour: `make bench-light ARGS='--cases c01,c05'` for a few.
bench-light: $(READY)  ## from a failure to its verified script, against torch's own minifier and one compile
	$(BIN)/python -m benchmarks.light --json .cache/bench-light/results.jsonl $(ARGS)

# Ten minutes on 2 cores: `make bench-corpus ARGS='--sizes 1000'` takes two hours.
bench-corpus: $(READY)  ## a corpus of tiny bundles: throughput of replays, memory, the index
	$(BIN)/python -m benchmarks.corpus --sizes 100 --stand-in 1000,10000 --json .cache/bench-corpus/results.jsonl $(ARGS)

# Half an hour on 2 cores, after ten minutes that measure the throughput: `make bench-hunt ARGS='--minutes 5'` for less.
bench-hunt: $(READY)  ## a hunt: programs, failures, buckets, false alarms; programs per minute against one by one
	$(BIN)/python -m benchmarks.hunt $(ARGS)

# A quarter of an hour on 2 cores: `make bench-false-alarms ARGS='--programs gan --steps 50'` for less, ARGS='--device cuda' on a GPU.
bench-false-alarms: $(READY)  ## alarms about healthy training programs, and planted errors that are found
	$(BIN)/python -m benchmarks.false_alarms $(ARGS)

# Three minutes, most of them the demo: `make house ARGS=--static` only counts.
house: $(READY)  ## size and shape of the package: lines, modules, private names of torch, files run by a command
	$(BIN)/python -m benchmarks.house $(ARGS)

clean:  ## remove the environments and caches
	rm -rf .venv .venv-torch-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
