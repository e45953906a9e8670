# make demo   compare methods on scikit-learn's digits and write a report
# make test   the whole test suite, one process a core
# make test-browser   the report in a real browser, which is installed by apt-get where there is none
# make test-data   statistics of the real data sets in $POLYMODE_DATA; those that are not there are skipped
# make test-hub   publishing and loading through huggingface_hub, in an environment of its own
# make test-ray   cells and shards on a local Ray cluster of two workers, in an environment of its own
# make test-hf   networks of transformers, peft and timm, in an environment of its own; no downloads of models
# make test-cuda   devices: on `meta`, and on a GPU, which must be there
# make docs   the tables of the docs from results/, and the documentation site in build/site
# make release-check   the wheel and the sdist, built and tried in an empty environment
# Each makes a virtual environment in .venv first, with the pinned versions of constraints.txt.

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)

.PHONY: help demo test test-browser test-data test-hub test-ray test-hf test-cuda check bench docs release-check clean

help:
	@sed -n 's/^# //p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "polymode needs Python 3.10 or newer as python3; found $$(python3 --version)"; exit 1; }
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm -f $(VENV)/installed-* && touch $(STAMP)

demo: $(STAMP)
	$(PYTHON) -m polymode run --task digits --method map --method deep_ensemble \
		--method dropout --method swag --seeds 0-2 --out runs/demo

test: check
	$(PYTHON) -m pytest --numprocesses auto --maxprocesses 4

test-browser: $(STAMP)
	@command -v chromium google-chrome >/dev/null || apt-get install --yes --quiet chromium || \
		{ echo "no chromium here, and apt-get cannot install it: install one yourself"; exit 1; }
	POLYMODE_BROWSER=required $(PYTHON) -m pytest tests/browser

test-data: $(STAMP)
	$(PYTHON) -m pytest tests/real_data -rs

test-hub test-ray: test-%:
	python3 -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,$*]'
	.venv-$*/bin/python -m pytest -rs $(TESTS_$*)

# timm asks for torchvision, which none of its models needs: see tests/hf/conftest.py
test-hf:
	python3 -m venv .venv-hf
	.venv-hf/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hf]'
	.venv-hf/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'timm>=1.0'
	.venv-hf/bin/python -m pytest tests/hf

TESTS_hub := tests/posterior/test_hub.py
TESTS_ray := tests/runs/test_ray.py

test-cuda: $(STAMP)
	POLYMODE_CUDA=required $(PYTHON) -m pytest -rs tests/core/test_devices.py

check: $(STAMP)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bench: $(STAMP)
	$(PYTHON) -m benchmarks

docs: $(STAMP)
	$(PYTHON) -m docs.tables
	python3 -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	.venv-docs/bin/python -m docs.site

release-check:
	.ci/release-check

clean:
	rm -rf $(VENV) .venv-hub .venv-ray .venv-hf .venv-docs build runs .pytest_cache .mypy_cache .ruff_cache
