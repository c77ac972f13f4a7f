# make help lists the targets.

GO      ?= go
BACKEND ?= embedded
PKG     ?= ./... ./examples/... ./tests/...
TIMEOUT ?= 20m
FOR     ?= 8h

# Installs missing servers. Set DEPS=: to install them yourself.
DEPS    ?= scripts/deps.sh

# The modules of the repository. All but tools share the workspace go.work.
MODULES = . examples tests tools

# Runs a command with PG_DSN and AMQP_URL of running servers or of new servers.
WITH_SERVERS = $(GO) run ./internal/servers/cmd/with-servers --

# The tools have their own module outside of the workspace, so that their
# dependencies do not become dependencies of the library. The linter also runs
# outside of the workspace, so that it sees each module as its users do.
TOOL = GOWORK=off $(GO) tool -modfile='$(CURDIR)/tools/go.mod'
LINT = $(TOOL) golangci-lint

.PHONY: help
help: ## list the targets
	@awk -F ': *## ' '/^[a-z-]+:.*## / { split($$1, target, ":"); printf "  make %-6s %s\n", target[1], $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run the example service                    BACKEND=embedded|servers ARGS='flags of examples/orders'
ifeq ($(BACKEND),embedded)
	$(GO) run ./examples/orders $(ARGS)
else ifeq ($(BACKEND),servers)
	$(DEPS)
	$(WITH_SERVERS) sh -c 'exec $(GO) run ./examples/orders -db "$$PG_DSN" -amqp "$$AMQP_URL" "$$@"' demo $(ARGS)
else
	@echo "make demo: BACKEND is '$(BACKEND)': embedded (nothing to install) or servers (PostgreSQL and RabbitMQ)" >&2; exit 2
endif

.PHONY: test
test: ## test against real servers                  PKG=./outbox RUN=TestName COUNT=1 TIMEOUT=20m ARGS=-v
	$(DEPS)
	$(WITH_SERVERS) $(GO) test -race -timeout '$(TIMEOUT)'$(if $(RUN), -run '$(RUN)')$(if $(COUNT), -count '$(COUNT)') $(ARGS) $(PKG)

.PHONY: bench
bench: ## run benchmarks against real servers        OUT=file ARGS='flags of tests/bench'
	$(DEPS)
	$(WITH_SERVERS) $(GO) run ./tests/bench$(if $(OUT), -out '$(OUT)') $(ARGS)

# Chaos also runs processes of an earlier release: of OLD, or of the last tag.
OLD   ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
CHAOS  = $(if $(OLD),old=$$(scripts/build-chaos.sh '$(OLD)') && )$(GO) run ./tests/chaos$(if $(OLD), -old "$$old")

.PHONY: chaos
chaos: ## show that no message is lost or applied twice   OLD=commit ARGS='flags of tests/chaos'
	$(DEPS)
	$(CHAOS) $(ARGS)

.PHONY: soak
soak: ## run chaos for hours                        FOR=8h OLD=commit ARGS='flags of tests/chaos'
	$(DEPS)
	$(CHAOS) -duration '$(FOR)' $(ARGS)

.PHONY: guards
guards: ## show that each trap's test fails without its guard   ARGS='flags of tests/guards'
	$(DEPS)
	$(WITH_SERVERS) $(GO) run ./tests/guards $(ARGS)

.PHONY: charts
charts: ## draw the charts of the docs
	$(GO) run ./tests/charts > docs/img/retry-policy.svg

.PHONY: check
check: ## check format, vet, lint, modules
	$(LINT) fmt --diff
	$(GO) vet ./... ./examples/... ./tests/...
	$(GO) vet -tags failpoints ./internal/failpoint
	$(LINT) run ./...
	cd examples && $(LINT) run ./...
	cd tests && $(LINT) run ./...
	scripts/check-modules.sh $(MODULES)

.PHONY: fmt
fmt: ## format the code
	$(LINT) fmt

# The examples are not synced, because their exporters would raise versions in the
# go.mod of the library, which its users would have to take.
.PHONY: tidy
tidy: ## tidy the modules and use the same versions in all of them
	dir=$$(mktemp -d) && (cd $$dir && $(GO) work init '$(CURDIR)' '$(CURDIR)/tests' && $(GO) work sync); status=$$?; rm -r $$dir; exit $$status
	for module in $(MODULES); do (cd $$module && GOWORK=off $(GO) mod tidy) || exit; done
