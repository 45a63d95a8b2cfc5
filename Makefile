# Two commands on a fresh machine: `make demo` and `make test`. Both may be run again: what is
# installed or fetched stays. PYTHON=, VENV=, OUT= and BENCH= can be given on the command line.

PYTHON ?= python3
VENV ?= .venv
OUT ?= out/demo
BENCH ?= overhead stt

BIN = $(VENV)/bin
MAKEFLAGS += --no-print-directory

.PHONY: demo test lint format bench models doctor constraints clean

demo: models
	$(BIN)/voicepipe demo --out $(OUT)

test: $(VENV)/.installed-dev models
	$(BIN)/voicepipe models fetch kokoro-82m
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev models
	@mkdir -p out/bench
	@set -e; for name in $(BENCH); do \
		echo "$(BIN)/voicepipe bench $$name --json out/bench/$$name.json"; \
		$(BIN)/voicepipe bench $$name --json out/bench/$$name.json; \
	done

models: $(VENV)/.installed
	$(BIN)/voicepipe models fetch

doctor: $(VENV)/.installed
	$(BIN)/voicepipe doctor

# Pins of a tested environment. torch pins its CUDA libraries itself.
constraints: $(VENV)/.installed-dev
	@{ echo "# Tested versions; made by \`make constraints\`."; \
	   $(BIN)/python -m pip freeze --exclude-editable | grep -viE '^(nvidia-|cuda-|triton)'; \
	} > constraints.txt

clean:
	rm -rf out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
		"voicepipe needs Python 3.11 or newer: make PYTHON=python3.11 " + "$(MAKECMDGOALS)")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "no virtual environment could be made (Debian, Ubuntu: apt install python3-venv)"; \
		exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV); torch alone is large, so the first time takes some minutes."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
