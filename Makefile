# Each verb sets up a private environment in .venv by itself; it needs make and Python >= 3.12 (or pyenv).
# A certain interpreter: make demo PYTHON=/path/to/python3.13

SHELL := /bin/sh
.DEFAULT_GOAL := help

# Nothing that is started here reports to anybody.
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
# Bytecode is kept in .venv and beside the code: without it each process that a test starts compiles all that it
# imports (5.6 s instead of 2.0 s for the command line with Dask), and pytest rewrites all tests anew.
unexport PYTHONDONTWRITEBYTECODE
ifdef PYTHON
export PYTHON
endif

bin := .venv/bin
# Extra words for the tool behind a verb: make test ARGS="-k statistics -x"
ARGS ?=
# Processes that `make test` runs tests in: make test WORKERS=0 stays in one, where output can be seen (-s).
WORKERS ?= auto
# A process that dies ends the run with the test's name: xdist 3.8 gives its finished files to the process that
# replaces it, which then waits for ever.
parallel := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: help setup demo test test-documents test-flows test-faults test-pages test-slow test-all lint format bench bench-defaults soak manual pictures constraints clean

help:  ## Show the verbs.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-22s %s\n", $$1, $$2}'

setup:  ## Create or refresh .venv; the other verbs do so by themselves.
	@./.ci/setup

demo: setup  ## Train on a photograph through the Prefect flow and save the picture.
	$(bin)/rff-dist demo $(ARGS)

test: setup  ## Run the default tests and the doctests.
	$(bin)/python -m pytest $(parallel) $(ARGS)

test-documents: setup  ## Run what README, the manual and the notebooks show, and the demo.
	$(bin)/python -m pytest $(parallel) \
	  -m "documents and not slow" tests/integration $(ARGS)

test-flows: setup  ## Run the tests of flows, the whole system with real processes among them.
	$(bin)/python -m pytest -m flows $(ARGS)

test-faults: setup  ## Run the tests of faults, all of tests/faults/test_table.py; about twenty minutes.
	$(bin)/python -m pytest $(parallel) -m faults tests $(ARGS)

test-pages: setup  ## Look at the page of a run and at the manual's search with Chromium, and with axe-core.
	$(bin)/python -m pip install --quiet --no-deps axe-playwright-python==0.1.8
	$(bin)/python -m pytest -n $(WORKERS) -m browser tests $(ARGS)

test-slow: setup  ## Run the tests that take minutes.
	$(bin)/python -m pytest -m slow tests $(ARGS)

test-all: setup  ## Run every test.
	$(bin)/python -m pytest -m "" tests rff_dist $(ARGS)

# All of them run, so that one round shows what each has found.
lint: setup  ## Check format, style, words, types and import layers; change nothing.
	@failed=0; \
	for tool in "ruff format --check ." "ruff check ." "python -m tools.plain_words" \
	    "python -m tools.packed_assignments" mypy lint-imports; do \
	  echo "$$tool"; $(bin)/$$tool || failed=1; \
	done; exit $$failed

format: setup  ## Format the code and mend what ruff can mend.
	$(bin)/ruff format .
	$(bin)/ruff check --fix .

bench: setup  ## Print the benchmarks' ratios, measured side by side.
	$(bin)/python -m benchmarks $(ARGS)

bench-defaults: setup  ## Compare the defaults with other models, for hours; ARGS="--splits 4-9 --data FOLDER --tables FOLDER".
	$(bin)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(bin)/python -m benchmarks defaults --keep build/defaults $(ARGS)

soak: setup  ## Kill workers, clients and schedulers 200 times at random, and cut networks; ARGS="--schedules 20" for fewer.
	$(bin)/python -m tools.kill_schedules $(ARGS)

# MkDocs and its themes advertise their successors in a warning, which these two silence.
manual: setup  ## Build the manual into build/manual, and check its links.
	DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=true \
	  $(bin)/python -m mkdocs build --strict --quiet --config-file notebooks/manual/mkdocs.yml
	@echo "build/manual/index.html"

pictures: setup  ## Make the pictures of README, manual and ARCHITECTURE again; the page's needs Chromium.
	$(bin)/python -m tools.pictures
	$(bin)/python -m tools.architecture_pictures

constraints: setup  ## Resolve the newest versions anew into constraints.txt.
	$(bin)/python -m pip install --quiet uv
	$(bin)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.12 --upgrade \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --strip-extras --quiet -o .constraints.new
	@(sed '/^[^#]/,$$d' constraints.txt; cat .constraints.new; $(bin)/uv --version | sed 's/uv \([0-9.]*\).*/uv==\1/') \
	  > .constraints.all && mv .constraints.all constraints.txt && rm .constraints.new

clean:  ## Remove everything that the verbs created, .venv included.
	rm -rf .venv build dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
