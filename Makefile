# `make demo` and `make test` need Python 3.10 or later and make; they set up everything else in .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# What each needs; the demo is for people in a hurry.
EXTRAS_$(DEMO_STAMP) := demo
EXTRAS_$(STAMP) := demo,bench,test,lint

.PHONY: demo test lint bench clean

demo: $(DEMO_STAMP)
	$(RUN) examples/quickstart.py

# TensorFlow and Keras have threads of their own, beside which the other tests shall not fork.
test: lint
	$(RUN) -m pytest -n 2 --dist worksteal --ignore=tests/frameworks
	TF_CPP_MIN_LOG_LEVEL=3 $(RUN) -m pytest -n 2 --dist worksteal tests/frameworks

lint: $(STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

bench: $(STAMP)
	$(RUN) benchmarks/run.py

$(DEMO_STAMP) $(STAMP): setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torchyoga needs Python 3.10 or later; found " + sys.version.split()[0] + ". Say: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS_$@)]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
