# make help lists the targets.

GO      ?= go
BACKEND ?= embedded
PKG     ?= ./... ./tests/...
TIMEOUT ?= 20m
FOR     ?= 8h

# Installs the servers that are missing; DEPS=: leaves that to you.
DEPS    ?= scripts/deps.sh

# The modules of the repository; the first two share the workspace go.work.
MODULES = . tests tools

# Runs a command with PG_DSN and AMQP_URL set, of servers that run or of new ones.
WITH_SERVERS = $(GO) run ./internal/servers/cmd/with-servers --

# The tools' dependencies are not the library's: their module stays outside of
# the workspace. Linting outside of it too shows each module as its users get it.
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
bench: ## measure against real servers               OUT=file ARGS='flags of tests/bench'
	$(DEPS)
	$(WITH_SERVERS) $(GO) run ./tests/bench$(if $(OUT), -out '$(OUT)') $(ARGS)

# Processes of an earlier release run beside ours: of OLD, or of the last tag.
OLD   ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
CHAOS  = $(if $(OLD),old=$$(scripts/build-chaos.sh '$(OLD)') && )$(GO) run ./tests/chaos$(if $(OLD), -old "$$old")

.PHONY: chaos
chaos: ## show that nothing is lost or doubled         OLD=commit ARGS='flags of tests/chaos'
	$(DEPS)
	$(CHAOS) $(ARGS)

.PHONY: soak
soak: ## the same for long                          FOR=8h OLD=commit ARGS='flags of tests/chaos'
	$(DEPS)
	$(CHAOS) -duration '$(FOR)' $(ARGS)

.PHONY: guards
guards: ## show that tests of traps fail without their guards   ARGS='flags of tests/guards'
	$(DEPS)
	$(WITH_SERVERS) $(GO) run ./tests/guards $(ARGS)

.PHONY: charts
charts: ## draw the charts of the docs
	$(GO) run ./tests/charts > docs/img/retry-policy.svg

.PHONY: check
check: ## check format, vet, lint, modules
	$(LINT) fmt --diff
	$(GO) vet ./... ./tests/...
	$(GO) vet -tags failpoints ./internal/failpoint
	$(LINT) run ./...
	cd tests && $(LINT) run ./...
	scripts/check-modules.sh $(MODULES)

.PHONY: fmt
fmt: ## format the code
	$(LINT) fmt

.PHONY: tidy
tidy: ## tidy the modules and bring their versions together
	$(GO) work sync
	for module in $(MODULES); do (cd $$module && GOWORK=off $(GO) mod tidy) || exit; done
