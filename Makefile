# SPDX-License-Identifier: Apache-2.0
# What there is to do in this repository. The work is done by the scripts in hack.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# libvirt is loaded when it is used: no headers, no pkg-config.
TAGS := libvirt_dlopen

.PHONY: help
help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install Debian packages, build programs and guest image into bin
	@hack/setup.sh

.PHONY: demo
demo: setup ## run a guest, migrate it, delete it; KEEP=1 leaves it running to look around
	@go build -tags $(TAGS) -o bin/refdaemon ./refdaemon
	@go build -tags $(TAGS) -o bin/demo ./internal/demo
	@exec bin/demo $(if $(KEEP),-keep)

.PHONY: screenshots
screenshots: setup build ## run the demo and draw what it prints into docs/images
	@go build -tags $(TAGS) -o bin/demo ./internal/demo
	@mkdir -p bin/.log && bin/demo | tee bin/.log/demo.log
	@go run ./internal/screenshots

.PHONY: test
test: setup ## all checks and tests; ARGS go to "go test"
	@hack/test.sh

.PHONY: explore
explore: ## try to break "never two, never none": millions of states, a few minutes
	@go test ./internal/explore -run '^(TestExplore|TestPlantedBugsAreFound|TestClassicalExpectationsMakeDuplicates|TestReplays)$$' -count 1 -full -v -timeout 15m | grep -v '^===\|^ *---'

.PHONY: determinism
determinism: ## render each guest of the corpus 10,000 times and compare bytes, a few minutes
	@go test ./template -run '^TestRenderingIsDeterministic$$' -count 1 -renders 10000 -timeout 30m

.PHONY: queues
queues: ## 10^7 random operations on the migration queue and 3 * 10^6 on its admission, beside plain references; ten minutes
	@go test ./migration -run '^Test(Queue|Admission)IsAsDocumented$$' -count 1 -operations 10000000 -v -timeout 90m

.PHONY: steady
steady: ## read converted domains back in 100,000 ways and see that nothing differs, a few minutes
	@go test ./domain -run '^TestDiffIsSteady$$' -count 1 -rounds 100000 -v -timeout 60m

.PHONY: chaos
chaos: setup ## kill libvirtd 50 times and guests 20 times under an informer, a few minutes
	@VIRTLOOM_CHAOS=1 go test -tags $(TAGS) ./domain/libvirt -run '^TestQEMU$$/^(an_informer_misses_nothing|a_guest_that_hangs_costs)' -count 1 -v -timeout 30m

.PHONY: burst
burst: setup ## 200 guests created at once, ten idle minutes, and their end: what the API server was asked for
	@go test ./vmi/vmictrl -run '^TestBurst$$' -burst 200 -idle 10m -count 1 -v -timeout 60m | grep 'burst_test.go\|^---\|^ok\|^FAIL\|^panic'

# How many guests and migrations bench-scale measures with.
N ?= 1000
M ?= 200

.PHONY: bench-scale
bench-scale: setup build ## N guests at once, then M migrations, beside stock KubeVirt; WAITING=1000, CACHED=10000, CHECK=1, ARGS; minutes
	@go build -o bin/benchscale ./internal/benchscale
	@exec bin/benchscale -n $(N) -m $(M) $(if $(WAITING),-waiting $(WAITING)) $(if $(CACHED),-cached $(CACHED)) $(if $(CHECK),-check) $(ARGS)

# How long is soaked: SPAN of simulated time, DURATION of real time; SEED says what happens.
SPAN ?= 24h
DURATION ?= 1h
SEED ?= 1

.PHONY: soak
soak: ## a day of random operations and faults in simulated time, real controllers and agents, and what is left of it; minutes
	@go test ./internal/soak -run '^TestSoak$$' -span $(SPAN) -seed $(SEED) -count 1 -v -timeout 2h | grep -v '^==='

.PHONY: soak-real
soak-real: setup build ## the same for an hour of real time with the daemon as a process; DURATION, SEED, ARGS
	@go build -o bin/soakreal ./internal/soakreal
	@exec bin/soakreal -duration $(DURATION) -seed $(SEED) $(ARGS)

.PHONY: waiting
waiting: setup ## 1,000 migrations wait for five slots: what that asks of the API server, who goes when, and how long a slot is free
	@go test ./migration/migrationctrl -run '^TestManyWait$$' -pending 1000 -move 1s -idle 1m -count 1 -v -timeout 60m | grep 'scale_test.go\|^---\|^ok\|^FAIL\|^panic'

.PHONY: roundtrips
roundtrips: setup ## move guests there and back 50 times, through the agents' TLS, a quarter of an hour
	@go test -tags $(TAGS) ./refdaemon/e2e -run '^TestAGuestMovesThereAndBackManyTimes$$' -roundtrips 50 -count 1 -v -timeout 60m

.PHONY: launchers
launchers: setup ## the same with each guest in a Pod with a libvirt of its own
	@go test -tags $(TAGS) ./refdaemon/e2e -run '^TestAGuestMovesThereAndBackManyTimes$$' -launchers -roundtrips 50 -count 1 -v -timeout 60m

.PHONY: drains
drains: ## drain 100 simulated nodes with 10,000 guests, and compare with what no order could beat, a minute
	@go test ./migration/migrationsim -run '^TestADrainTakesHardlyLongerThanItMust$$' -full -count 1 -v | grep -v '^==='

.PHONY: migrations
migrations: setup ## all that can go wrong with a live migration: aborts, cut links, kills at every step; an hour
	@go test -tags $(TAGS) ./refdaemon/e2e -run '^(TestAMigrationCanBeAbortedAtAnyPoint|TestAGuestThatWritesFasterThanTheLink|TestALinkThatIsCutCostsNoGuest|TestWhateverIsKilledAtAnyStepThereIsOneGuest)$$' -full -count 1 -v -timeout 180m

.PHONY: docs
docs: setup ## run the shell blocks of README.md and docs as they stand, those that need root or minutes as well
	@go test ./internal/doctest -count 1 -all -timeout 60m

.PHONY: verify
verify: ## generated code and docs are fresh, modules tidy, licences allowed, lint: all that is no test of behaviour
	@hack/tools.sh
	@hack/verify.sh

.PHONY: api
api: ## agree on the exported API as it is now, in api; what it lost has to be in CHANGELOG.md
	@go test ./internal/apitest -run '^TestTheAPIIsAsAgreed$$' -count 1 -update
	@go test ./internal/apitest
	@git --no-pager diff --stat -- api

# How long each target is fuzzed, and which: a regular expression.
FUZZTIME ?= 30s
FUZZ ?= .

.PHONY: fuzz
fuzz: ## run all fuzz targets, one by one; FUZZTIME=30s each, FUZZ=PATTERN for some of them
	@hack/fuzz.sh $(FUZZTIME) '$(FUZZ)'

.PHONY: lint
lint: ## golangci-lint, built when first used
	@hack/lint.sh

.PHONY: fmt
fmt: ## format all Go files
	@git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -w

.PHONY: vet
vet: ## go vet, with libvirt and without a C compiler
	@go vet -tags $(TAGS) ./...
	@CGO_ENABLED=0 go vet ./...

.PHONY: build
build: ## build refdaemon into bin
	@go build -tags $(TAGS) -o bin/refdaemon ./refdaemon

.PHONY: sbom
sbom: build ## write what bin/refdaemon consists of to bin/refdaemon.cdx.json (CycloneDX)
	@source hack/lib.sh; SOURCE_DATE_EPOCH=$$(epoch) sbom bin/refdaemon bin/refdaemon.cdx.json

.PHONY: release
release: ## make the release of the commit that is checked out, in dist: programs, their parts, manifests, licences, checksums
	@hack/release.sh

.PHONY: images
images: ## make the images of refdaemon/Containerfile as an OCI layout, in bin/images/oci; needs no container engine
	@hack/image.sh

.PHONY: verify-release
verify-release: ## make release and images twice, in two places, and fail unless they are the same, byte by byte; compiles everything twice
	@hack/verify-release.sh

.PHONY: generate
generate: ## generate definitions of KubeVirt's objects and the launcher's protocol
	@hack/tools.sh
	@hack/generate.sh

.PHONY: verify-generate
verify-generate: ## fail if "make generate" would change a file
	@hack/tools.sh
	@hack/verify-generate.sh

.PHONY: clean
clean: ## remove what was built from this module, keep programs and guest image
	@rm -f bin/refdaemon bin/demo bin/testsummary bin/benchscale bin/soakreal

.PHONY: undo
undo: ## remove all that setup made here (bin); Debian packages stay
	@rm -rf bin
