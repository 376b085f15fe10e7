# Everything a person or CI runs. Commands are one line each; what they do is in the modules they call.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WANT := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
TPU := $(shell [ "$$(uname -sm)" = "Linux x86_64" ] && echo ,tpu)
STAMP := $(VENV)/.made-with-$(WANT)

.PHONY: venv demo test test-layouts bench lint format
venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "isoflop needs Python 3.11, 3.12 or 3.13; PYTHON=$(PYTHON) is " + sys.version.split()[0])'
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable '.[dev$(TPU)]'
	touch $@

demo: venv
	$(PY) -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/demo

lint: venv
	$(VENV)/bin/ruff format --check lm experiments launch tests
	$(VENV)/bin/ruff check lm experiments launch tests
	$(VENV)/bin/mypy

format: venv
	$(VENV)/bin/ruff format lm experiments launch tests
	$(VENV)/bin/ruff check --fix lm experiments launch tests

test: lint
	$(PY) -m pytest -n 2 --dist loadfile

test-layouts: venv
	$(PY) -m pytest -m layouts -n 2 --dist load

bench: venv
	$(PY) -m pytest -m bench --no-header tests
