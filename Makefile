# SPDX-License-Identifier: Apache-2.0
# Works from a clean clone with Python 3.11 to 3.14 and make; `make help` says what a target needs beyond that.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# three on two cores: many tests wait, for sessions of ZooKeeper that expire for example
JOBS ?= 3
INTEROP ?= tests/interop
UNIT ?= tests/unit tests/property
TESTS ?= $(addprefix tests/,unit property component e2e architecture spark)
PARALLEL := $(if $(filter-out 0 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)
KERNEL_SOURCES := setup.py $(wildcard consumerd/wire/_kernel/*.pyx consumerd/wire/_kernel/*.pxd consumerd/wire/_kernel/*.h)

# Tests start some hundred processes and collect in each worker: without cached bytecode, each compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv kernel demo test spark unit pure kernel-sanitized check audit format interop interop-full full alerts-test simulate metrics protocol verification mutants fuzz fuzz-frames bench wheels package-test constraints coverage docs screenshots new-user image-test clean

help:  ## list what there is
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 16

venv: $(VENV)/.installed $(VENV)/.kernel  ## make the virtual environment

build_kernel = $(BIN)/python setup.py --quiet build_ext --inplace
say_kernel = @$(BIN)/python -m consumerd version | sed -n '/^kernel:/p'

kernel: $(VENV)/.installed  ## build the native kernel into this checkout, as far as its sources have changed (needs gcc and Python's headers)
	CONSUMERD_REQUIRE_KERNEL=1 $(build_kernel)

define make_environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "consumerd needs Python 3.11 or newer, and is tested on 3.11 to 3.14; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) lacks venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
endef

$(VENV)/.installed: pyproject.toml
	$(make_environment)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.kernel  # which pip has built as well
	$(say_kernel)

# without a compiler, one line says that there is no kernel
$(VENV)/.kernel: $(VENV)/.installed $(KERNEL_SOURCES)
	$(build_kernel)
	@touch $@

demo: $(VENV)/.demo  ## the first two minutes: a cluster, a stream, a disturbed group, an audit (DEMO="--records 200000" for more)
	@$(BIN)/python -m consumerd demo --setup-log $(VENV)/downloads.log $(DEMO)

$(VENV)/.demo: pyproject.toml
	$(make_environment)
	@echo "setting up in $(VENV), once: about 600 MB to download, most of it pyspark, whose jars hold ZooKeeper"
	$(BIN)/pip install --disable-pip-version-check --log $(VENV)/pip.log -e '.[demo]'
	@# pip's log has 28 MB, of which a few lines say what it has downloaded
	@grep -aE ' (Downloading|Using cached) ' $(VENV)/pip.log > $(VENV)/downloads.log || true
	@rm $(VENV)/pip.log
	$(say_kernel)
	@touch $@

test: venv  ## all tests that need nothing but Python (a real ZooKeeper comes from PyPI), three files at a time; JOBS=1 runs one after the other; TESTS=tests/unit only those
	$(call all_of,TESTS) $(PYTEST) $(PARALLEL) $(TESTS)

spark: venv  ## the tests that need Spark, in one process with one session
	$(PYTEST) tests/spark

unit: venv  ## unit and property tests only
	$(PYTEST) $(PARALLEL) $(UNIT)

PURE := $(addprefix tests/unit/,wire net fetch landing sinks) tests/component/fetch \
  $(wildcard $(addprefix tests/property/test_,fetch* net* record*))

pure: venv  ## what the native kernel takes part in, without it
	CONSUMERD_KERNEL=off $(PYTEST) $(PURE)

kernel-sanitized: venv  ## the native kernel under AddressSanitizer and UBSan, with any bytes (needs gcc)
	PYTHON=$(abspath $(BIN))/python tests/sanitized/run

check: venv  ## lint, formatting, types, layers, known vulnerabilities of pinned versions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.package.advisories

audit: venv  ## fetch the newest advisories on the pinned versions (needs the network: osv.dev), keep them, and check
	$(BIN)/python -m tests.package.advisories --fetch

format: venv  ## format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The name under which a run of all tests of a target is recorded (CONSUMERD_VERIFICATION); a choice of them is not recorded.
all_of = $(if $(filter file,$(origin $(1))),CONSUMERD_RUN='`make $@`')

# in their own order: tests of one release then share its cluster
interop: venv  ## against real Kafka and the real Java consumer (needs Java, and maven on first use); INTEROP=FILES only those
	$(call all_of,INTEROP) $(PYTEST) -p no:randomly $(INTEROP)

interop-full: venv fuzz-frames  ## the same on every release of the matrix, ours on the ZooKeepers that came with the releases, more kills, and fuzz-frames
	CONSUMERD_RUN='`make $@`' CONSUMERD_FULL_MATRIX=1 $(PYTEST) -p no:randomly tests/interop
	CONSUMERD_RUN='ours on ZooKeeper of Kafka 0.8.2.2' CONSUMERD_ZOOKEEPER_OF=0.8.2.2 $(PYTEST) tests/component/zk tests/component/group tests/component/offsets
	CONSUMERD_RUN='ours on ZooKeeper of Kafka 1.1.1' CONSUMERD_ZOOKEEPER_OF=1.1.1 $(PYTEST) tests/component/zk tests/component/group tests/component/offsets
	CONSUMERD_KILLS=20 $(PYTEST) tests/component/embedded/test_broker_killed.py

full:  ## everything that the gate (.ci/run) leaves out, too, on Debian as root: other Pythons and releases, mutants, packages, the image, bare systems (some 75 minutes)
	.ci/full

alerts-test: venv  ## each alert from the fault that it is for: real daemons, Prometheus and Alertmanager (needs Debian's prometheus, prometheus-alertmanager, prometheus-node-exporter, krb5-kdc, krb5-admin-server, krb5-user, and the extra kerberos)
	$(PYTEST) -p no:randomly tests/alerts

simulate: venv  ## whole groups on virtual time, SEEDS stories (20000), BRONZE_SEEDS (500) that go on into bronze, COORDINATED_SEEDS (3000) of groups that brokers coordinate, and LEGACY_SEEDS (2000) on brokers of Kafka 0.7, none of which `make test` tells
	$(BIN)/python -m tests.support.simulation 2000-$$(($${SEEDS:-20000} + 1999))
	$(BIN)/python -m tests.support.simulation --kind bronze 2000-$$(($${BRONZE_SEEDS:-500} + 1999))
	$(BIN)/python -m tests.support.simulation --kind coordinated 2000-$$(($${COORDINATED_SEEDS:-3000} + 1999))
	$(BIN)/python -m tests.support.simulation --kind legacy 2000-$$(($${LEGACY_SEEDS:-2000} + 1999))

metrics: venv  ## write the tables of docs/metrics.md from the code, and the dashboard
	$(BIN)/python -m tests.support.metrics_page
	$(BIN)/python deploy/grafana/make_dashboard.py > deploy/grafana/consumerd.json

protocol: venv  ## write the tables of docs/protocol.md from the code
	$(BIN)/python -m tests.support.protocol_page

verification: venv  ## write the table of recorded runs into docs/verification.md (CONSUMERD_VERIFICATION=FILE has runs recorded)
	$(BIN)/python -m tests.support.verification

mutants: venv  ## break the code on purpose, promise by promise: a named test must fail each time (a part needs gcc); MUTANTS="--part 1/10" a tenth of them
	$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz: venv  ## the decoders under a coverage-guided fuzzer (Python below 3.13), FUZZ_SECONDS each (30); damaged requests at a broker for BROKER_SECONDS (300)
	$(BIN)/python tests/fuzz/run.py --seconds $${FUZZ_SECONDS:-30}
	$(BIN)/python tests/fuzz/broker.py --seconds $${BROKER_SECONDS:-300}

fuzz-frames: venv  ## a million mutated frames through every decoder, with memory capped (FRAMES for another number)
	$(BIN)/python tests/fuzz/frames.py --count $${FRAMES:-1000000}

bench: venv  ## side by side with peers, on real brokers (needs Java, and maven on first use)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python -m bench

PYTHONS ?= $(shell .ci/find_python)

wheels:  ## build what a release consists of into dist/: source, pure wheel, a manylinux wheel for each Python that is here, a CycloneDX list of components (needs gcc; PYTHONS=python3.13 only that)
	$(PYTHON) -m tests.package.wheels dist $(PYTHONS)

package-test: venv  ## build source and wheels, install each into a fresh environment, with and without a compiler (needs gcc for a part)
	$(PYTEST) tests/package

constraints: $(VENV)/.installed  ## write constraints.txt: the versions that this environment was tested with
	$(BIN)/python -m tests.package.constraints --write

coverage: venv  ## branch coverage of unit and property tests
	$(BIN)/coverage run -m pytest tests/unit tests/property
	$(BIN)/coverage report

DOCS_VENV := .venv-docs
read_docs_extra := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")

$(DOCS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -c '$(read_docs_extra)' | xargs -d '\n' $(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check
	@touch $@

docs: $(DOCS_VENV)/.installed  ## build the documentation as a site into build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "the documentation is in build/site/index.html"

screenshots: venv  ## take the pictures in docs/images anew (needs chromium)
	CONSUMERD_SCREENSHOTS=docs/images CONSUMERD_REQUIRE_TOOLS=1 $(PYTEST) -p no:randomly tests/e2e/test_screenshots.py

new-user:  ## the README's commands on a bare Debian (needs root and debootstrap; BARE_SYSTEM is a folder that keeps it; RELEASE=trixie, forky; RUN_AS=root; COMMANDS instead of the README's)
	RELEASE=$(RELEASE) RUN_AS=$(RUN_AS) tests/newuser/run $(BARE_SYSTEM)

image-test: venv  ## build the container image without Docker and land with it (needs root, debootstrap, buildah)
	PYTHON=$(abspath $(BIN))/python tests/image/run $(BARE_SYSTEM)

clean:  ## remove what was made here
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
