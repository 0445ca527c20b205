# `make help` lists the targets. `make demo` and `make test` set everything up by themselves:
# Python 3.11 or newer and make are all they need.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
N ?= 1000
SECONDS ?= 120
# One more than a small machine has cores: tests wait for the servers that they start.
WORKERS ?= 3
# A file's tests share servers; those that take longest begin first (tests/conftest.py).
TOGETHER := --dist loadfile --no-loadscope-reorder
# Hundreds of short programs import the same modules; each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*?## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*?## "} {printf "  %-16s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## The environment in .venv, from the locked requirements

$(STAMP): requirements/dev.txt requirements/bootstrap.txt pyproject.toml libs/sdk/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}. Name another one: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python has no venv module. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up .venv (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . -e libs/sdk
	@touch $@

.PHONY: lock
lock: $(STAMP) ## Resolve the requirements anew (names, versions and hashes; no addresses)
	@for set in bootstrap platform examples dev go frameworks; do \
	  $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header requirements/$$set.in -o requirements/$$set.txt; done
	@for set in services nats build; do \
	  $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --constraint requirements/dev.txt requirements/$$set.in \
	    -o requirements/$$set.txt; done

.PHONY: demo
demo: $(STAMP) ## The main job: real training, preempted after its checkpoint, resumed bit-identically
	@$(BIN)/python -m services.allinone.demo

.PHONY: first-hour
first-hour: $(STAMP) ## README and guide word by word, in a fresh clone with a fresh home: PAGES="docs/guide.md"
	@$(BIN)/python -m tools.first_hour $(PAGES)

.PHONY: dev
dev: $(STAMP) ## Every service as a process of its own, on embedded NATS and PostgreSQL
	@$(BIN)/python -m services.allinone.dev_command --tasks-as-root

.PHONY: cluster cluster-down
cluster: $(STAMP) ## A real Kubernetes: two nodes on this machine (root), or what KUBECONFIG names
	@$(BIN)/python -m tools.cluster up

cluster-down: $(STAMP) ## End the nodes of `make cluster` and leave nothing of them
	@$(BIN)/python -m tools.cluster down

ENGINE ?=
BASE ?=
IMAGES ?=
.PHONY: images images-base
images: $(STAMP) ## Container images (podman, buildah or docker): BASE=image, ENGINE=, IMAGES="names"
	@$(BIN)/python -m tools.images build $(IMAGES) $(if $(BASE),--base $(BASE))

images-base: $(STAMP) ## Only the base of a machine without a registry of images (root, debootstrap)
	@$(BIN)/python -m tools.images base

.PHONY: sbom
sbom: $(STAMP) ## Which packages the images contain: CycloneDX JSON in dist/sbom, from the locks
	@$(BIN)/python -m tools.sbom dist/sbom

DIST ?= dist
.PHONY: sdk
sdk: $(STAMP) ## The SDK as a wheel for people's own environments: dist/shiftwork-VERSION-py3-none-any.whl
	@rm -rf libs/sdk/build # setuptools would put modules that are gone into the wheel
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir $(DIST) libs/sdk
	@ls $(DIST)/shiftwork-*.whl

.PHONY: charts test-charts
charts: $(STAMP) ## The Helm charts as archives in dist/charts
	@HELM=$$($(BIN)/python -m tools.cluster programs helm) deploy/k8s/package

test-charts: $(STAMP) ## Charts: lint, a matrix of values, schemas, alerts, rights, and a release's life
	@SHIFTWORK_KUBERNETES=required $(BIN)/python -m pytest -n 2 $(TOGETHER) tests/charts

.PHONY: gen
gen: $(STAMP) ## Generate code and documentation from proto/ and the tables
	@cd proto && ../$(BIN)/buf generate
	@$(BIN)/python -m tools.task_forms
	@$(BIN)/python -m tools.policy_schemas
	@$(BIN)/python -m tools.generate_docs

.PHONY: gen-check
gen-check: $(STAMP)
	@$(BIN)/python -m tools.check_generated

.PHONY: check
check: $(STAMP) ## Lint, types, import contracts, proto lint and compatibility, generated code fresh
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/vermin --quiet --no-tips --target=3.8- --violations libs/sdk/shiftwork/*.py libs/sdk/shiftwork/client/*.py
	@cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code
	@$(BIN)/python -m tools.check_compatibility
	@$(BIN)/python -m tools.check_generated
	@$(BIN)/basedpyright

.PHONY: test
test: $(STAMP) ## The whole default suite, with real servers
	@$(BIN)/python -m pytest -n $(WORKERS) $(TOGETHER) \
	  -m "not slow and not login and not containers and not kubernetes and not frameworks and not objectstore"

.PHONY: test-slow
test-slow: $(STAMP) ## The slow tests: real processes, outages, the command line end to end
	@$(BIN)/python -m pytest -n $(WORKERS) $(TOGETHER) --timeout 600 \
	  -m "slow and not login and not containers and not kubernetes and not frameworks and not objectstore"

# The training frameworks, in an environment of their own: they take gigabytes, and nothing of the
# platform needs them.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.set-up
$(FRAMEWORKS_STAMP): $(STAMP) requirements/frameworks.txt libs/sdk/pyproject.toml
	@echo "Setting up $(FRAMEWORKS) (once): PyTorch and others, a few gigabytes"
	@test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv --without-pip $(FRAMEWORKS)
	@$(BIN)/uv pip install --quiet --python $(FRAMEWORKS)/bin/python --require-hashes -r requirements/frameworks.txt
	@$(BIN)/uv pip install --quiet --python $(FRAMEWORKS)/bin/python --no-deps -e libs/sdk
	@touch $@

.PHONY: frameworks test-frameworks
frameworks: $(FRAMEWORKS_STAMP) ## Only that environment

test-frameworks: $(FRAMEWORKS_STAMP) ## Adapters and contracts with the real libraries: PyTorch, JAX, TensorFlow, XGBoost, MPI and others
	@$(BIN)/basedpyright --project tests/frameworks/pyrightconfig.json --pythonpath $(FRAMEWORKS)/bin/python
	@$(BIN)/python -m pytest -n 2 $(TOGETHER) -m "frameworks and not gpu" tests/frameworks

.PHONY: test-gpu
test-gpu: $(FRAMEWORKS_STAMP) ## The platform and the frameworks on a real GPU of this machine
	@$(BIN)/python -m pytest -m gpu tests/frameworks

# A certified OpenID provider, from the locked packages of tests/oidc_provider (node 20 or newer, npm).
PROVIDER := tests/oidc_provider
$(PROVIDER)/node_modules/.set-up: $(PROVIDER)/package.json $(PROVIDER)/package-lock.json
	@cd $(PROVIDER) && npm ci --silent --ignore-scripts --omit=dev
	@touch $@

# The example subscriber that is no Python, with its locked packages.
SUBSCRIBERS := examples/subscribers
$(SUBSCRIBERS)/node_modules/.set-up: $(SUBSCRIBERS)/package.json $(SUBSCRIBERS)/package-lock.json
	@cd $(SUBSCRIBERS) && npm ci --silent --ignore-scripts
	@touch $@

.PHONY: test-login
test-login: $(STAMP) $(PROVIDER)/node_modules/.set-up $(SUBSCRIBERS)/node_modules/.set-up ## With node: login at npm's oidc-provider, events with NATS's own client, AsyncAPI's schema
	@$(BIN)/python -m pytest -m "login and not keycloak" tests/login tests/integration/test_subscribers.py tests/tools/test_events_page.py

# The studio's pages, from the locked packages of studio/ (node 20 or newer, npm). What the gateway
# serves is committed: nobody needs Node to run the platform.
STUDIO := studio
BUILT := services/gateway/studio/files
$(STUDIO)/node_modules/.set-up: $(STUDIO)/package.json $(STUDIO)/package-lock.json
	@cd $(STUDIO) && npm ci --silent --ignore-scripts
	@touch $@

.PHONY: studio test-studio
studio: $(STAMP) $(STUDIO)/node_modules/.set-up ## The studio's pages: types from the OpenAPI document, check, build
	@$(BIN)/python -m tools.openapi_document $(STUDIO)/node_modules/.openapi.json
	@cd $(STUDIO) && npx openapi-typescript node_modules/.openapi.json -o src/api/generated.ts >/dev/null
	@cd $(STUDIO) && npm run --silent types && npm run --silent build -- --logLevel warn

test-studio: studio ## The studio: its built files are fresh, parts, and each view in Chromium (CHROMIUM=)
	@test -z "$$(git status --porcelain -- $(BUILT))" || \
	  { git status --short -- $(BUILT); echo "$(BUILT) is not what studio/ builds: commit what make studio has written"; exit 1; }
	@cd $(STUDIO) && npm test --silent && npm run --silent test:browser

.PHONY: keycloak test-keycloak
keycloak: $(STAMP) ## Only Keycloak's distribution, in the folder of caches (java, mvn)
	@$(BIN)/python -m tools.keycloak >/dev/null

test-keycloak: keycloak ## The same login tests at Keycloak, from Maven (java, mvn): KEYCLOAK_ZIP=file without mvn
	@$(BIN)/python -m pytest -m keycloak tests/login

.PHONY: test-objectstore
test-objectstore: $(STAMP) ## Kept output in a real object storage: MinIO, built from its Go module (once, minutes)
	@SHIFTWORK_OBJECTSTORE=required $(BIN)/python -m pytest -m objectstore tests/contract tests/services/log_collector

.PHONY: test-containers
test-containers: images ## The images themselves, and bus and store on servers in containers
	@$(BIN)/python -m pytest -m containers --timeout 600 tests/images
	@$(BIN)/python -m pytest --infra=containers --timeout 120 -k "not memory" \
	  tests/contract/test_bus*.py tests/contract/test_{store,outbox,leadership}.py

# Real API servers with simulated nodes first, then two nodes that run containers. A machine that
# cannot have them fails with the reason; KUBECONFIG is the way out for the nodes.
ON_PLANES := tests/contract tests/services tests/kubernetes tests/tools/test_cluster_control_plane.py
.PHONY: test-kubernetes test-kubernetes-planes test-kubernetes-nodes
test-kubernetes: test-charts test-kubernetes-planes test-containers test-kubernetes-nodes ## All of Kubernetes: charts, API servers, images, two real nodes (root)

test-kubernetes-planes: $(STAMP) ## Only on API servers with simulated nodes
	@SHIFTWORK_KUBERNETES=required $(BIN)/python -m pytest -n 2 $(TOGETHER) -m kubernetes $(ON_PLANES) \
	  --ignore=tests/kubernetes/nodes --durations=10

test-kubernetes-nodes: images ## Only on the two real nodes
	@SHIFTWORK_KUBERNETES=required $(BIN)/python -m pytest -m kubernetes --timeout 600 \
	  tests/tools/test_cluster_nodes.py tests/kubernetes/nodes --durations=10

.PHONY: demo-kubernetes
demo-kubernetes: images ## The demo in pods on real nodes: saved, deleted, moved, bit-identical
	@$(BIN)/python -m tools.kubernetes_demo

.PHONY: scenarios
scenarios: $(STAMP) ## Scheduling scenarios against their committed timelines
	@$(BIN)/python -m pytest tests/scenarios

.PHONY: sim
sim: $(STAMP) ## Whole-platform simulation with faults: N=1000 runs of it, or one SEED=n
	@$(BIN)/python -m tests.sim --simulations $(N) $(if $(SEED),--seed $(SEED))

TASKS ?= 100000
REAL ?= 5000
.PHONY: soak
soak: $(STAMP) ## Many tasks, and then nothing has grown: TASKS=100000 in memory, REAL=5000 on servers
	@$(BIN)/python -m tests.soak --tasks $(TASKS) --real $(REAL)

.PHONY: chaos
chaos: $(STAMP) ## Kill and freeze every part while people change their minds: SECONDS=120, SEED=n
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# What a benchmark needs from outside: the trace of submit_to_admission, the folder of those of
# sharing_quality, and for real nodes their kubeconfig and this machine's address as pods reach it.
BENCH_VARIABLES = BENCH_TRACE="$(TRACE)" BENCH_TRACES="$(TRACES)" BENCH_NODES="$(NODES)" BENCH_HOST="$(if $(NODES),$(HOST))"
TRACE ?=
TRACES ?=
NODES ?=
BENCH ?=
.PHONY: bench bench-smoke bench-smoke-cluster bench-record
bench: $(STAMP) ## All benchmarks, each with its floor in the same run; one: bench-submit_to_running, bench-p1
	@$(BENCH_VARIABLES) $(BIN)/python -m benchmarks all

bench-smoke: $(STAMP) ## Every benchmark for seconds: it still runs (its figures mean nothing)
	@$(BIN)/python -m benchmarks smoke

bench-smoke-cluster: $(STAMP) ## The same for those on a control plane with simulated nodes
	@$(BIN)/python -m benchmarks smoke --cluster

bench-record: $(STAMP) ## Results as JSON to be committed, then `make gen`: BENCH="p1 p3", or all
	@$(BENCH_VARIABLES) $(BIN)/python -m benchmarks record $(BENCH)

bench-%: $(STAMP)
	@$(BENCH_VARIABLES) $(BIN)/python -m benchmarks $*
