# SPDX-License-Identifier: Apache-2.0
# What there is to do in this repository. The work is done by the scripts in hack; CONTRIBUTING.md has the flags of
# "go test" for all that is narrower.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# libvirt is loaded when it is used: no headers, no pkg-config.
TAGS := libvirt_dlopen

.PHONY: help
help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install Debian packages, build programs and guest image into bin
	@hack/setup.sh

.PHONY: unit
unit: ## tests that need Go and nothing else: no root, no bin; ARGS go to "go test", here and in the next three
	@hack/test.sh unit

.PHONY: integration
integration: setup ## tests on a real API server, on libvirt, on the kernel
	@hack/test.sh integration

.PHONY: e2e
e2e: setup ## tests of the daemons with real guests
	@hack/test.sh e2e

.PHONY: test
test: setup ## all of it: checks, demo, every test; what CI runs
	@hack/test.sh

.PHONY: nightly
nightly: setup ## what takes hours: every test with the race detector, long runs, fuzzing, reproducible releases; ONLY=PATTERN for some of it
	@hack/nightly.sh '$(or $(ONLY),.)'

.PHONY: mutate
mutate: ## plant bugs in the shipped code, one at a time: a test must notice each
	@go test -tags $(TAGS) ./internal/mutation -mutate -count 1 -timeout 90m | grep -v '^=== '

.PHONY: demo
demo: setup ## install virtloom on two nodes, run a VM, restart it, give it a CPU, migrate it, drain its node; KEEP=1 leaves it running to look around
	@hack/image.sh
	@go build -tags $(TAGS) -o bin/ ./internal/demo
	@exec bin/demo $(if $(KEEP),-keep)

# How many guests and migrations bench-scale measures with.
N ?= 1000
M ?= 200

.PHONY: bench-scale
bench-scale: setup ## N guests at once, then M migrations, beside stock KubeVirt; WAITING=1000, CACHED=10000, CHECK=1, ARGS; KIND=vm STOCK=1: VirtualMachines; minutes
	@go build -tags $(TAGS) -o bin/ ./refdaemon ./internal/benchscale
	@$(if $(STOCK),hack/stock.sh virt-controller)
	@exec bin/benchscale -n $(N) $(if $(KIND),-kind $(KIND)) $(if $(filter vm,$(KIND)),,-m $(M)) $(if $(STOCK),-stock bin/stock/virt-controller) $(if $(WAITING),-waiting $(WAITING)) $(if $(CACHED),-cached $(CACHED)) $(if $(CHECK),-check) $(ARGS)

.PHONY: verify
verify: ## format, vet, lint, generated files, licences, documents, exported API: all that is no test of behaviour
	@hack/tools.sh
	@hack/verify.sh

.PHONY: generate
generate: ## generate definitions of KubeVirt's objects and the launcher's protocol
	@hack/tools.sh
	@hack/generate.sh

.PHONY: release
release: ## make the release of the commit that is checked out, in dist: programs, their parts, manifests, licences, checksums
	@hack/release.sh

.PHONY: images
images: ## make the images of refdaemon/Containerfile in bin/images, as an OCI layout and as archives; needs no container engine
	@hack/image.sh

.PHONY: undo
undo: ## remove all that was made here: bin, and what killed tests have left; Debian packages stay
	@hack/undo.sh
