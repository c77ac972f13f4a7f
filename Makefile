# make help lists the targets.

GO      ?= go
BACKEND ?= embedded
SERVICES ?= 1
# The slowest packages are the first, so that none of them runs alone at the end.
WORKSPACE = ./tests/... ./tests/stock/... ./cmd/once/... ./... ./examples/... ./examples/recipes/... ./outbox/pgxoutbox/... ./outbox/sqlv4/... ./rabbit/amqpv3/...
PKG     ?= $(WORKSPACE)
TIMEOUT ?= 30m
FOR     ?= 8h

# The driver of the tests that use PostgreSQL through database/sql: pq or pgx.
DRIVER  ?= pq
export ONCE_TEST_DRIVER = $(DRIVER)

# The versions of the servers, for example PG=18 RABBIT=4.3. Without them, the tests use the newest
# servers that scripts/newer-servers.sh has unpacked, or else any running or installed version.
export ONCE_TEST_PG := $(or $(PG),$(ONCE_TEST_PG))
export ONCE_TEST_RABBIT := $(or $(RABBIT),$(ONCE_TEST_RABBIT))
SERVERS = $(ONCE_TEST_PG) $(ONCE_TEST_RABBIT)

# Installs missing servers. Set DEPS=: to install them yourself.
DEPS    ?= scripts/deps.sh$(if $(strip $(SERVERS)), && scripts/newer-servers.sh $(SERVERS))

# The modules of the repository. All but tools and tests/peers share the workspace go.work.
# tests/peers needs a newer version of pgx than the library.
MODULES = . cmd/once examples examples/recipes outbox/pgxoutbox outbox/sqlv4 rabbit/amqpv3 tests tests/peers tests/stock tools

# Runs a command with PG_DSN and AMQP_URL of running servers or of new servers.
WITH_SERVERS = $(GO) run ./internal/test/servers/cmd/with-servers --

# The tools have their own module outside of the workspace, so that their
# dependencies do not become dependencies of the library.
TOOL = GOWORK=off $(GO) tool -modfile='$(CURDIR)/tools/go.mod'
LINT = $(TOOL) golangci-lint

.PHONY: help
help: ## list the targets
	@awk -F ': *## ' '/^[a-z-]+:.*## / { split($$1, target, ":"); printf "  make %-11s %s\n", target[1], $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run the example service                    BACKEND=embedded|servers SERVICES=1|2 ARGS='flags of examples/orders'
ifeq ($(BACKEND)-$(SERVICES),embedded-1)
	$(GO) run ./examples/orders $(or $(ARGS),-outage)
else ifneq (,$(filter $(BACKEND)-$(SERVICES),servers-1 servers-2 embedded-2)) # two services need a broker
	$(DEPS)
	$(WITH_SERVERS) sh -c 'exec $(GO) run ./examples/orders -db "$$PG_DSN" -amqp "$$AMQP_URL" -services $(SERVICES) "$$@"' demo $(ARGS)
else
	@echo "make demo: BACKEND is '$(BACKEND)': embedded (nothing to install) or servers (PostgreSQL and RabbitMQ); SERVICES is '$(SERVICES)': 1 or 2" >&2; exit 2
endif

# Tests against real servers. PKG, RUN, COUNT, TIMEOUT and ARGS select the tests. Three packages run
# at a time, because tests also wait. make check vets the code. Debug information
# and a disk would only cost CPU time: temporary files are in memory if there is room.
GO_TEST = $(WITH_SERVERS:--=-newest -memory --) $(GO) test -vet off -ldflags=-w -p 3 -timeout '$(TIMEOUT)'$(if $(RUN), -run '$(RUN)')$(if $(COUNT), -count '$(COUNT)')

# SQLite is C code translated to Go, with locks that the race detector does not know. The detector
# finds no races in it, and makes it fourteen times slower.
RACE_DETECTOR = -race -gcflags='modernc.org/...=-race=false'

# Packages whose tests mostly wait for servers, browsers and other processes. The race detector
# makes them slow, and finds its races in the packages that they use.
NO_RACE = /once/(cmd/once|console|docs|examples/recipes|operate/.*|internal/test/.*|schema|tests/(amqpv3|badinput|bench|chaos|charts|cloudevents|conformance|console|databases|dropin|eventbus|examples|examples_tx|failpoints|guards|house|matrix|observability|pgxoutbox|release|roles|stock|undecided|universal|upgrade))$$

# Runs go test with the flags $(1), with RACE=1 in two parts. If $(2) is a file, only the tests in it
# run: lines with a package and a test. The example service, which people copy, writes no such lines:
# all its tests run.
define RUN_TESTS
	@packages=$$($(GO) list $(PKG)) || exit; status=0; set --; \
	if [ -n '$(2)' ]; then \
		if [ ! -s '$(2)' ]; then echo "SHORTENED is '$(2)', which has no lines: run make test SHORTENED=$(2) first" >&2; exit 2; fi; \
		whole=$$(echo "$$packages" | grep '/once/examples/orders'); \
		if [ -n "$$whole" ]; then $(GO_TEST) $(if $(RACE),$(RACE_DETECTOR)) $(1) $(ARGS) $$whole || status=$$?; fi; \
		packages=$$(echo "$$packages" | grep -xF -e "$$(cut -d ' ' -f 1 '$(2)' | sort -u)"); \
		set -- -run "^($$(cut -d ' ' -f 2 '$(2)' | sort -u | paste -sd '|' -))\$$"; \
	fi; \
	if [ -n '$(RACE)' ]; then \
		race=$$(echo "$$packages" | grep -vE '$(NO_RACE)'); packages=$$(echo "$$packages" | grep -E '$(NO_RACE)'); \
		if [ -n "$$race" ]; then $(GO_TEST) $(RACE_DETECTOR) $(1) "$$@" $(ARGS) $$race || status=$$?; fi; \
	fi; \
	if [ -n "$$packages" ]; then $(GO_TEST) $(1) "$$@" $(ARGS) $$packages || status=$$?; fi; \
	exit $$status
endef

# make test appends the names of the tests that it shortens to the file SHORTENED. make test-all with
# this file repeats only these tests. The others have run in the same way if make test had RACE=1.
.PHONY: test
test: export ONCE_TEST_SHORTENED = $(abspath $(SHORTENED))
test: ## test in minutes: each promise once         PKG=./outbox RUN=TestName COUNT=1 TIMEOUT=30m DRIVER=pgx RACE=1 PG=18 RABBIT=4.3 ARGS=-v
	$(DEPS)
	$(call RUN_TESTS,-parallel 4 -short)

.PHONY: test-all
test-all: RACE = 1
test-all: ## run all tests, most with the race detector  the same variables, SHORTENED=file of make test
	$(DEPS)
	$(call RUN_TESTS,,$(SHORTENED))

.PHONY: test-matrix
test-matrix: ## test the promises with some versions  PG=18 RABBIT=4.3 ARGS='-short -record, flags of tests/matrix'
	$(DEPS)
	$(GO) run ./tests/matrix $(ARGS)

# make bench compares its rows with the rows of the last release in this file. With BASELINE= it
# does not compare.
BASELINE ?= tests/bench/baseline.json

.PHONY: bench
bench: ## run benchmarks against real servers        OUT=file BASELINE=file ARGS='flags of tests/bench'
	$(DEPS)
	$(WITH_SERVERS) $(GO) run ./tests/bench$(if $(BASELINE), -baseline '$(BASELINE)')$(if $(OUT), -out '$(OUT)') $(ARGS)

.PHONY: peers
peers: ## measure beside River and stock Watermill  ARGS='flags of tests/peers'
	$(DEPS)
	dir=$$(mktemp -d) && (cd tests/peers && GOWORK=off $(GO) build -o $$dir/peers .) && $(WITH_SERVERS) $$dir/peers $(ARGS); \
		status=$$?; rm -r $$dir; exit $$status

# Chaos also runs processes of an earlier release: of the commit OLD, which is the last tag by
# default. With CLUSTER=3 it runs on a cluster, without an earlier release.
OLD   ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
CHAOS  = $(if $(CLUSTER),$(GO) run ./tests/chaos -cluster $(CLUSTER),$(if $(OLD),old=$$(scripts/build-chaos.sh '$(OLD)') && )$(GO) run ./tests/chaos$(if $(OLD), -old "$$old"))

.PHONY: chaos
chaos: ## show that no message is lost or applied twice   OLD=commit CLUSTER=3 ARGS='flags of tests/chaos'
	$(DEPS)
	$(CHAOS) $(ARGS)

.PHONY: soak
soak: ## run chaos for hours                        FOR=8h OLD=commit CLUSTER=3 ARGS='flags of tests/chaos'
	$(DEPS)
	$(CHAOS) -duration '$(FOR)' $(ARGS)

.PHONY: guards
guards: ## show that each trap's test fails without its guard   ARGS='flags of tests/guards'
	$(DEPS) && { scripts/newer-servers.sh 4.3 || true; } # without it, one guard is reported as SKIPPED
	$(WITH_SERVERS) $(GO) run ./tests/guards $(ARGS)

# VERSION is the version that once --version prints.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

.PHONY: once
once: ## build the command line: bin/once, static
	cd cmd/once && GOWORK=off CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.release=$(VERSION)' -o '$(CURDIR)/bin/once' .

.PHONY: release
release: ## build binaries of the command line, with SBOMs and checksums: dist/
	scripts/release.sh '$(VERSION)' dist

.PHONY: api
api: ## compare the exported API and the migrations with the last release
	scripts/api.sh

.PHONY: charts
charts: ## draw the charts of the docs
	$(GO) run ./tests/charts > docs/img/retry-policy.svg

# The test draws all pages. Only some of the pictures are in the docs.
.PHONY: screenshots
screenshots: ## draw the pictures of the console for the docs, in Chromium
	$(DEPS)
	dir=$$(mktemp -d) && SCREENSHOTS=$$dir $(WITH_SERVERS) $(GO) test -count 1 -run TestScreenshots ./tests/console && \
		for page in overview quarantine trace; do install -m 644 $$dir/$$page-light.png $$dir/$$page-dark.png docs/img/ || exit; done; \
		status=$$?; rm -r $$dir; exit $$status

# Each module is vetted outside of the workspace, as its users build it. One run of the linter for
# the workspace takes half the time of a run for each module.
.PHONY: check
check: ## check format, vet, lint, modules, API
	$(LINT) fmt --diff
	scripts/check-modules.sh $(MODULES)
	scripts/check-lowest.sh
	for module in $(filter-out tools,$(MODULES)); do echo "go vet ($$module)" && (cd $$module && GOWORK=off $(GO) vet ./...) || exit; done
	lint=$$($(TOOL) -n golangci-lint) && $$lint run $(WORKSPACE) && cd tests/peers && GOWORK=off $$lint run ./...
	scripts/api.sh

.PHONY: size
size: ## count files, packages and names, beside the goals
	$(GO) run ./tests/size

.PHONY: fmt
fmt: ## format the code
	$(LINT) fmt

# The examples are not synced, because their exporters would raise versions in the go.mod of the
# library, and then users of the library would have to raise theirs.
.PHONY: tidy
tidy: ## tidy the modules and use the same versions in all of them
	dir=$$(mktemp -d) && (cd $$dir && $(GO) work init '$(CURDIR)' '$(CURDIR)/tests' && $(GO) work sync); status=$$?; rm -r $$dir; exit $$status
	for module in $(MODULES); do (cd $$module && GOWORK=off $(GO) mod tidy) || exit; done
