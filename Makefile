# Two commands that always work on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) || command -v python3)
BIN := .venv/bin

# Where bytecode is not kept, each of some hundred processes compiles the package again, and each
# worker rewrites the asserts of all tests: empty means "keep it", whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Workers take tests from each other at the end; until then a file's tests share their fixtures.
# One thread each. Where a test asks torch for two, they sleep until the other one has a core:
# by default they spin, while the core that they wait for belongs to another worker.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -n auto --maxprocesses 8 --dist worksteal

PAPERS := papers/tests papers/src
VERIFY := verify/tests

SELDOM := /(tests?|testing|_inductor|onnx|ray|networkx|debugpy|pip|setuptools|sqlalchemy|IPython|jedi)/

.PHONY: demo flower-demo test papers-test verify-test test-all lint docs wheel wheel-test coverage fuzz mutants \
	explore check format gallery clean

.venv/ready: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
		-e '.[train,dev]' -e ./papers
	# On all cores; pip takes one. What is hardly ever imported, two fifths of all, is left to
	# whoever imports it. It is for speed alone: a file that does not compile is named, no more.
	-$(BIN)/python -m compileall -q -j 0 -x '$(SELDOM)' .venv/lib src papers/src
	touch $@

demo: .venv/ready            ## train 200 clients on real data, and write a report
	$(BIN)/randquant train examples/digits.py --epsilon 8 --baseline --run runs/demo --overwrite

flower-demo: .venv/ready     ## four hospitals and a helper as processes; one hospital is killed
	rm -rf build/flower-demo
	$(BIN)/python examples/flower_hospitals/sites.py build/sites
	$(BIN)/python examples/flower_app/deploy.py --app examples/flower_hospitals --sites build/sites \
		--folder build/flower-demo --helper --epsilon 2 --examples 114 --kill-client 3 --set num-server-rounds=10

test: .venv/ready            ## what proves the product in a few minutes, on all cores
	$(PYTEST) -m "not slow"

papers-test: .venv/ready     ## the same of randquant-papers
	$(PYTEST) -m "not slow" $(PAPERS)

verify-test: .venv/ready     ## the same of randquant-verify, which needs neither
	$(PYTEST) $(VERIFY)

test-all: test papers-test verify-test  ## every test: those of `make test`, then what must be long
	$(PYTEST) -m "slow" tests src $(PAPERS)

docs: .venv/ready            ## the site, into build/site; notebooks are executed when they changed
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site -d build/doctrees . build/site

build/tools:
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check build

wheel: build/tools           ## source distribution and wheel, into dist
	rm -rf dist
	build/tools/bin/python -m build --outdir dist

wheel-test: wheel            ## the wheel in empty environments of every Python 3.11 to 3.14 found
	$(PYTHON) tests/wheels.py dist

ROOMS := src/randquant

# In one process, which takes a quarter of an hour: what Numba compiles, and what other processes
# do, is not counted.
coverage: .venv/ready        ## which branches of proofs, sums and rounds are not taken by their tests
	$(BIN)/pip install --quiet --disable-pip-version-check 'coverage>=7'
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run --branch --data-file=build/coverage \
		--source=$(ROOMS)/privacy,$(ROOMS)/secure_sums,$(ROOMS)/training,$(ROOMS)/integrations \
		-m pytest -m "not slow" \
		tests/privacy tests/secure_sums tests/training tests/integrations
	$(BIN)/python -m coverage report --data-file=build/coverage --skip-covered --sort=cover

fuzz: .venv/ready            ## a million hostile inputs for the parsers
	$(BIN)/python tests/fuzz.py

.venv/mutation: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutation]'
	touch $@

mutants: .venv/mutation      ## a sample of faults, drawn by SEED: are all noticed? (hours)
	$(BIN)/python tests/mutation/run.py --sample 20 --seed $(or $(SEED),0) --save

explore: .venv/ready         ## the property tests on many new examples
	HYPOTHESIS_PROFILE=explore $(BIN)/pytest tests src $(PAPERS)

lint: .venv/ready            ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

check: lint                  ## these, and the tests of a few minutes of both packages
	$(PYTEST) -m "not slow" tests src $(PAPERS) $(VERIFY)

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

gallery: .venv/ready         ## every figure of the papers, quick, into gallery/; DATA=folder of data files
	$(BIN)/randquant-papers reproduce --all --quick --gallery gallery --stand-in fashion-mnist $(if $(DATA),--data-dir $(DATA))

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
