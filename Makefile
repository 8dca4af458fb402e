# `make help` lists the targets. All of them need Go, a C compiler and git; those that run a cluster need root on Linux.
.DEFAULT_GOAL := help
SHELL := /bin/sh
# One setting for everything but the race detector, which needs cgo: the Go build cache then serves all targets.
export CGO_ENABLED := 0

CLUSTER := bin/cluster
LINT := bin/golangci-lint

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build pod-resizer into bin/.
	go build -trimpath -o bin/pod-resizer ./cmd/pod-resizer

.PHONY: demo
demo: root $(CLUSTER) ## Watch a pod's CPU lowered in place on a real cluster; KEEP=1 leaves the cluster to play with.
	@echo "building bin/demo"
	@cd test && go build -o ../bin/ ./demo
ifdef KEEP
	$(CLUSTER) up && bin/demo --keep
else
	$(CLUSTER) run -- bin/demo
endif

.PHONY: test
test: root lint unit e2e ## Run all tests: lint and vet, unit tests, and the product on a real cluster.

# Said before the first of many minutes, not after the last.
.PHONY: root
root:
	@test "$$(id -u)" = 0 || { echo 'make $(MAKECMDGOALS) runs a kubelet, which needs root. Run: sudo env "PATH=$$PATH" make $(MAKECMDGOALS)' >&2; exit 1; }

.PHONY: lint
lint: $(LINT) ## Vet and lint every module.
	go vet ./...
	$(LINT) run ./...
	cd test && go vet ./... && ../$(LINT) run --config ../.golangci.yml ./...

.PHONY: unit
unit: ## Run the tests that need no cluster, with the race detector.
	CGO_ENABLED=1 go test -race ./...

.PHONY: e2e
e2e: root $(CLUSTER) ## Run the tests on a real cluster, which is built, started and removed.
	$(CLUSTER) build
	cd test && go test -count=1 -timeout 10m ./cluster/... ./deploy
	cd test && ../$(CLUSTER) run --yes -- go test -count=1 -timeout 20m -v ./e2e

.PHONY: golden
golden: ## Write the golden files of admission anew; look at the diff.
	go test ./webhook -run Golden -update

.PHONY: cluster-up
cluster-up: root $(CLUSTER) ## Build what is missing, start a real cluster and print its kubeconfig's path.
	$(CLUSTER) up

.PHONY: cluster-down
cluster-down: $(CLUSTER) ## Remove the cluster without a trace.
	$(CLUSTER) down

.PHONY: cluster-status
cluster-status: $(CLUSTER) ## Say whether the cluster is up and where its kubeconfig is.
	$(CLUSTER) status

.PHONY: clean
clean: ## Remove bin/. (Programs of the cluster stay in the user's cache folder, pod-resizer/.)
	rm -rf bin

# Go knows what has changed.
.PHONY: $(CLUSTER)
$(CLUSTER):
	@echo "building $@ (a few minutes the first time, seconds later)"
	@cd test && go build -o ../bin/ ./cluster/cmd/cluster

# Linking the linter anew takes longer than linting; its pins say when it is needed.
$(LINT): test/lint/go.mod test/lint/go.sum
	@echo "building golangci-lint (about 4 minutes the first time)"
	cd test/lint && go build -o ../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
