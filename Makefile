# The commands of contributors; each sets up .venv if it has to.
python = .venv/bin/python

.PHONY: test lint docs demo coverage build ci release
.venv:
	tests/run.sh --version

test: ## all tests; make test ARGS="tests/runs -m 'not slow'"
	tests/run.sh $(ARGS)

lint: .venv ## format, lint, types, import contracts
	SKIP=tests .venv/bin/pre-commit run --all-files

docs: .venv ## the site, in build/site
	$(python) docs/generate.py
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

demo: docs ## the site with the demo
	.venv/bin/cai-pyserini run hpo --dense minilm --systems joint-doc-near --output build/hpo
	$(python) docs/demo.py build/hpo/indexes/joint-splade-idf-near build/site/demo

coverage: .venv ## all tests, and which lines they run
	$(python) -m pip install --quiet pytest-cov
	tests/run.sh --cov=cai_pyserini --cov-report=term-missing:skip-covered

build: .venv ## the archives of a release, in dist
	rm -rf dist
	$(python) -m pip install --quiet build twine
	$(python) -m build
	$(python) -m twine check --strict dist/*

ci: ## everything, as CI does
	.ci/run

release: ## what is committed becomes a release, if CI passes
	.ci/release
