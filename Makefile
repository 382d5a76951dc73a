# `make` alone lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# Three workers per core, because many tests wait more than they compute. Tests of a file share a worker, and so a
# cluster.
WORKERS := $(shell echo $$((3 * $$(getconf _NPROCESSORS_ONLN))))
PARALLEL ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Each target remembers its own failures: make test ONLY=--last-failed runs them again.
ONLY ?=
REMEMBER = -o cache_dir=.pytest_cache/$@ $(ONLY)
CONTROL_PLANE := kube-apiserver,kube-controller-manager,kube-scheduler
TEST_TOOLS := helm,helm3,helm-render,kubectl,kubeconform,ct,helm-docs,controller-gen,mpi-operator,etcd,etcdutl,kwok,kwokctl,$(CONTROL_PLANE)

# Tests start thousands of Python programs, each of which would compile its modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Bireme needs Python 3.11 or newer: run make with PYTHON=python3.11")'
	@echo 'Installing the Python packages of requirements.lock into $(VENV), which takes a minute or two …'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --no-compile --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: $(VENV)/.ready ## Make .venv with the bireme command in it

.PHONY: demo
demo: setup ## Plan, install and check imagenet-efa on a cluster without containers, and remove it
	$(BIN)/bireme demo

.PHONY: tools
tools: setup ## Get the tools that `make test` needs, built where no download answers
	$(BIN)/bireme tools --get $(TEST_TOOLS)

.PHONY: lint
lint: setup ## Check style and types of the Python code, the Dockerfiles and the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint --config images/.hadolint.yaml images/*/*Dockerfile
	PATH="$$($(BIN)/bireme tools --get actionlint -o path):$$PATH" actionlint -shellcheck= -pyflakes=

.PHONY: test
test: lint tools ## Lint, types, charts, unit, render and embedded tests
	$(BIN)/bireme check charts
	$(PYTEST) $(PARALLEL) $(REMEMBER) --durations 10 -m "not whole" tests/embedded tests/runtime tests/unit tests/render

.PHONY: test-full
test-full: tools ## The tests that `make test` and test-torch leave out because they take minutes each (tests of the kind tier: test-kind-full)
	$(PYTEST) $(PARALLEL) -m whole tests/eks tests/embedded tests/runtime tests/unit tests/render
	BIREME_TORCH_ROOT="$$($(BIN)/python hack/images/build.py rootfs torch-2.6)" $(PYTEST) -m whole tests/runtime/with_torch
	BIREME_TORCH_ROOT="$$($(BIN)/python hack/images/build.py rootfs torch-2.14)" $(PYTEST) tests/runtime/with_torch/test_hang.py tests/runtime/with_torch/test_planted_hangs.py \
		"tests/runtime/with_torch/test_snapshots.py::test_a_lost_process_and_a_lost_pod_cost_one_step_at_most[fsdp.py]"

.PHONY: coverage
coverage: tools ## Tell which branches of the charts the tests of renders run, in colours in site/coverage.html
	@mkdir -p site
	$(PYTEST) $(PARALLEL) -m "not whole" --chart-cov --chart-cov-report site/coverage.html tests/render

SEEDS ?= 5000
.PHONY: simulate
simulate: setup ## Simulate the rendezvous under faults that seeds choose: make simulate SEEDS=5000
	PYTHONPATH=.:runtime/src $(BIN)/python -m tests.runtime.simulation --seeds $(SEEDS)

.PHONY: test-eks
test-eks: setup ## hack/eks with a mocked provider and on moto as AWS, and eksctl's dry run (needs terraform 1.9 and the AWS provider; builds eksctl)
	$(PYTEST) -m "not whole" tests/eks

.PHONY: test-torch
test-torch: setup ## Real torchrun on a real etcd, in a root file system of Debian packages (needs root, some minutes)
	BIREME_TORCH_ROOT="$$($(BIN)/python hack/images/build.py rootfs torch-2.6)" $(PYTEST) -n 2 --dist loadfile $(REMEMBER) --durations 10 \
		-m "not whole" tests/runtime/with_torch

# A Python that has torch, and a binary of etcd where .venv cannot be made.
GPU_PYTHON ?= python3
ETCD ?=
.PHONY: test-gpu
test-gpu: $(if $(ETCD),,setup) ## Agents, warm starts, hangs and an LLM on one NVIDIA GPU, without Kubernetes (GPU_PYTHON has torch)
	$(GPU_PYTHON) -m tests.gpu --etcd "$(or $(ETCD),$$($(BIN)/bireme tools --get etcd -o path)/etcd)"

KIND_NODES := p5.4xlarge=3
KIND_IMAGES := etcd python torch mpi-5 mpi-operator paddle moto
# Two workers share one cluster: its tests wait more than they compute. KIND_WORKERS=0 runs one test at a time.
KIND_WORKERS ?= 2
TOPOLOGY_TESTS := $(patsubst %,tests/embedded/test_%.py,torch_elastic mpi_training paddle)

.PHONY: kind-images
kind-images: setup ## Build the node image and the images that the core of the kind tier needs
	$(BIN)/python hack/images/build.py node
	$(BIN)/python hack/images/build.py image $(KIND_IMAGES)

.PHONY: test-kind
test-kind: kind-images ## The core of the kind tier: real containers, real training (needs a container engine: hack/engine/start)
	$(PYTEST) -v -n $(KIND_WORKERS) --dist loadfile $(REMEMBER) --bireme-share-cluster \
		--cluster-type kind --bireme-nodes $(KIND_NODES) --durations 10 -m "not whole" tests/kind

.PHONY: test-kind-full
test-kind-full: setup ## The whole kind tier (two hours), the training scripts in chroots, and the topology tests on fake nodes inside a kind cluster
	$(PYTEST) tests/images
	$(PYTEST) --cluster-type kind --bireme-nodes $(KIND_NODES) tests/kind
	$(PYTEST) --cluster-type kind $(TOPOLOGY_TESTS)

.PHONY: test-matrix
test-matrix: setup ## The embedded tests on the oldest Kubernetes that is supported
	$(PYTEST) $(PARALLEL) --cluster-version oldest tests/embedded

.PHONY: schemas
schemas: setup ## Bundle schemas/ into charts/*/values.schema.json
	$(BIN)/python hack/generate.py schemas

.PHONY: golden
golden: setup ## Write tests/render/golden, what each chart renders, and workers.csv, what a worker gets on each type
	$(BIN)/python -m tests.render.golden

.PHONY: instances
instances: setup ## Write charts/common's lists of instance types, from values/instances
	$(BIN)/python hack/generate.py instances

.PHONY: docs
docs: setup ## Write charts/*/README.md, the picture of the README, and the documents as a site into site/
	$(BIN)/python hack/generate.py docs
	$(BIN)/mkdocs build --strict

.PHONY: crds
crds: setup ## Write the CustomResourceDefinition of charts/mpijob from the Go types of the pinned mpi-operator
	$(BIN)/python hack/generate.py crds

.PHONY: package
package: setup ## Pack the charts, their values and the Python packages into dist/: make package URL=https://charts.example.com KEY=secret.asc (REGISTRY=oci://… also pushes)
	$(BIN)/python hack/package.py dist $(if $(URL),--url $(URL)) $(if $(OWNER),--owner "$(OWNER)") $(if $(KEY),--key $(KEY)) \
		$(if $(COSIGN_KEY),--cosign-key $(COSIGN_KEY)) $(if $(REGISTRY),--registry $(REGISTRY))

.PHONY: images
images: setup ## Build the images and push them: make images REGISTRY=123456789012.dkr.ecr.us-west-2.amazonaws.com (ONLY="paddle torch" builds these, MIRROR=1 also copies those of others, COSIGN_KEY=file signs them, DRY_RUN=1 prints how)
	$(BIN)/python hack/images/publish.py $(if $(DRY_RUN),--dry-run) $(if $(MIRROR),--mirror) $(if $(ONLY),--only "$(ONLY)") "$(REGISTRY)" $(if $(COSIGN_KEY),--cosign-key $(COSIGN_KEY))

.PHONY: digests
digests: setup ## Print the digests of the images as values of all charts: make digests REGISTRY=… > digests.yaml
	@$(BIN)/python hack/images/publish.py --digests $(if $(ONLY),--only "$(ONLY)") "$(REGISTRY)"

.PHONY: tags
tags: setup ## Say which default images have newer patch releases: make tags, then make tags WRITE=1 docs golden
	@$(BIN)/python hack/images/refresh.py $(if $(WRITE),--write)

.PHONY: bench
bench: setup ## Run the benchmarks (some minutes)
	$(BIN)/python benchmarks/render.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/dispatcher.py
	$(BIN)/python benchmarks/staging.py
	PYTHONPATH=.:runtime/src $(BIN)/python benchmarks/rendezvous_scale.py

.PHONY: bench-startup
bench-startup: setup ## Measure how fast workers of MPI jobs start, compared with other controllers (half an hour, and their builds)
	PYTHONPATH=. $(BIN)/python benchmarks/startup.py

.PHONY: bench-recovery
bench-recovery: setup ## Measure how fast training continues after a kill, compared with stock torchrun (half an hour; needs a container engine)
	$(BIN)/python benchmarks/recovery.py

.PHONY: bench-goodput
bench-goodput: setup ## Measure what faults leave of the time of a job, compared with other systems (needs root and half an hour: ARGS=--quick for one run)
	BIREME_TORCH_ROOT="$$($(BIN)/python hack/images/build.py rootfs torch-2.6)" PYTHONPATH=.:runtime/src $(BIN)/python benchmarks/goodput.py $(ARGS)

.PHONY: lock
lock: setup ## Write requirements.lock from pyproject.toml
	$(PYTHON) -m venv $(VENV)/uv
	$(VENV)/uv/bin/pip install --quiet uv
	$(VENV)/uv/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-header --no-emit-index-url --quiet --upgrade -o requirements.lock

.PHONY: clean
clean: ## Remove what make wrote in this folder (the cache of tools stays)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
