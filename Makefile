# make lab, make test: everything else is below, and README.md gives the commands for a machine without make.

PY ?= python3
V := .venv
CPU_WHEELS := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help lab test lessons lint bench pictures

help:
	@echo "make lab       install into $(V), then open the lessons in JupyterLab (ARGS='--no-browser --port 8889')"
	@echo "make test      the suite: tests/, and every lesson cell against its stored output (CI=1: all of it; ARGS='-x')"
	@echo "make lessons   run the lessons again and store their outputs (LESSONS='lessons/00_start_here.ipynb')"
	@echo "make bench     how fast, how large, how true, beside other ways to run ranks (installs accelerate and ipyparallel)"
	@echo "make pictures  run the README's panels in a browser and photograph them again (ARGS=zero: that one)"
	@echo "make lint      ruff check and ruff format --check"
	@echo "options        PY=python3.12 (which Python)   CPU=1 (on Linux, the small CPU build of torch)"

$(V)/ready: pyproject.toml constraints.txt
	@command -v $(PY) >/dev/null 2>&1 || \
	    { echo "$(PY) was not found. dpviz needs Python 3.11 or newer; name yours: make PY=python3.12"; exit 1; }
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dpviz needs Python 3.11 or newer, but $(PY) is " + sys.version.split()[0] + ". Name a newer one: make PY=python3.12")'
	@$(PY) -c 'import ensurepip' 2>/dev/null || [ -x $(V)/bin/python ] || \
	    { echo "$(PY) cannot make a virtual environment (it has no ensurepip). On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@[ -x $(V)/bin/python ] || $(PY) -m venv $(V)
	@echo "Installing dpviz and what it needs into $(V) (once; torch is large)"
	@$(V)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(CPU),--extra-index-url $(CPU_WHEELS)) -c constraints.txt -e '.[lab,test]'
	@touch $@

lab: $(V)/ready
	@$(V)/bin/python -m dpviz start $(ARGS)

test: $(V)/ready
	$(V)/bin/python -m pytest tests lessons --nbval --nbval-current-env -n 3 --dist loadfile -m "not quiet" $(ARGS)
	$(V)/bin/python -m pytest tests lessons --nbval --nbval-current-env -m quiet $(ARGS)

lessons: $(V)/ready
	$(V)/bin/python lessons/execute.py $(LESSONS)

bench: $(V)/ready
	@$(V)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(V)/bin/python benchmarks/run.py $(ARGS)

pictures: $(V)/ready
	$(V)/bin/python docs/pictures.py $(ARGS)

lint: $(V)/ready
	$(V)/bin/python -m ruff check .
	$(V)/bin/python -m ruff format --check .
