# `make help` lists the targets. All of them need Go, a C compiler and git.
.DEFAULT_GOAL := help
SHELL := /bin/sh
# One setting for everything but the race detector, which needs cgo: the Go build cache then serves all targets.
export CGO_ENABLED := 0

CLUSTER := bin/cluster
LINT := bin/golangci-lint

# A real node needs root on Linux; simulated nodes do not.
NODES := $(or $(NODE),$(if $(filter Linux-0,$(shell uname)-$(shell id -u)),real) simulated)
ifneq ($(filter-out real simulated both,$(NODE)),)
$(error NODE=$(NODE): use real, simulated or both)
endif
VERSIONS := $(patsubst test/cluster/pins/kubernetes-%,%,$(sort $(wildcard test/cluster/pins/kubernetes-*)))
ifneq ($(filter-out $(VERSIONS),$(KUBERNETES)),)
$(error KUBERNETES=$(KUBERNETES): use one of $(VERSIONS))
endif
CLUSTER_FLAGS := $(if $(NODE),--node $(NODE)) $(if $(KUBERNETES),--kubernetes $(KUBERNETES))

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  NODE=real|simulated|both   what runs pods: a kubelet (root on Linux), KWOK, or both; else what this machine can do"
	@echo "  KUBERNETES=VERSION         one of $(VERSIONS); the newest if not said"
	@echo "  CI=true                    start clusters without asking, where there is no terminal"

.PHONY: build
build: ## Build pod-resizer into bin/.
	go build -trimpath -o bin/pod-resizer ./cmd/pod-resizer

.PHONY: demo
demo: $(CLUSTER) ## Watch a pod's CPU lowered in place on a cluster; KEEP=1 leaves the cluster to play with.
	@echo "building bin/demo"
	@cd test && go build -o ../bin/ ./demo
ifeq ($(KEEP),1)
	$(CLUSTER) up $(CLUSTER_FLAGS) && bin/demo --keep
else
	$(CLUSTER) run $(CLUSTER_FLAGS) -- bin/demo
endif

STAGES := lint unit fuzz-brief cluster-test $(NODES:%=e2e-%)

.PHONY: test
test: ## Run all tests: lint and vet, unit tests, a little fuzzing, and the product on clusters. Says at the end how long each stage took.
	@times=; for stage in $(STAGES); do \
		began=$$(date +%s); \
		$(MAKE) --no-print-directory $$stage || exit; \
		times="$$times$$(printf '%6ss  %s' $$(($$(date +%s) - began)) $$stage)\n"; \
	done; printf "\nAll tests passed.\n$$times"

# The second vet of test/ is for those who work on macOS, where its clusters have simulated nodes.
.PHONY: lint
lint: $(LINT) ## Vet and lint every module.
	go vet ./...
	$(LINT) run ./...
	cd test && go vet ./... && GOOS=darwin go vet ./... && ../$(LINT) run --config ../.golangci.yml ./...

.PHONY: unit
unit: ## Run the tests that need no cluster, with the race detector.
	CGO_ENABLED=1 go test -race ./...
	cd test && go test ./preview

# Every fuzz target there is. The short run is of a count of inputs, because before Go 1.27 one of a length of time sometimes fails with
# "context deadline exceeded" and no input (go.dev/issue/75804). To shrink inputs that are merely new would take most of the time.
FUZZTIME = 60s
fuzz-brief: FUZZTIME = 2000x
.PHONY: fuzz fuzz-brief
fuzz: ## Fuzz each parser and the webhooks' handler for FUZZTIME, 60s if not said; a failing input is left in testdata/fuzz.
fuzz fuzz-brief:
	@grep -ro --include='*_test.go' --exclude-dir=test --exclude-dir='.?*' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | sort | \
	while read -r package target; do \
		echo "$$package $$target"; \
		go test $$package -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x || exit; \
	done

.PHONY: cluster-test
cluster-test: $(CLUSTER) ## Run the tests of the cluster itself: that it works, and leaves no trace.
	$(CLUSTER) build $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) $(if $(filter real,$(NODES)),--node both)
	cd test && go test -count=1 -timeout 10m ./cluster/... ./deploy

.PHONY: e2e
e2e: $(NODES:%=e2e-%) ## Run the tests of the product, on a cluster of each kind that this machine can have.

# They mostly wait, so more run at a time than there are processors.
.PHONY: e2e-real e2e-simulated e2e-both
e2e-real e2e-simulated e2e-both: e2e-%: $(CLUSTER)
	$(CLUSTER) build --node $* $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) --add-on argo-rollouts
	cd test && ../$(CLUSTER) run --yes --node $* $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) -- \
		go test -count=1 -parallel 8 -timeout 20m -v ./e2e

# In rounds, so that whatever else the machine does falls on both sides.
ROUNDS := 1 2 3 4 5 6
.PHONY: bench-admission
bench-admission: ## Compare the webhook's speed with that of a bare one, side by side; about 3 minutes on an idle machine.
	@mkdir -p bin && rm -f bin/bench-admission.txt
	cd test && go build -o ../bin/ golang.org/x/perf/cmd/benchstat
	go test -c -o bin/webhook.test ./webhook
	@for round in $(ROUNDS); do \
		echo "round $$round of $(words $(ROUNDS))"; \
		(cd webhook && ../bin/webhook.test -test.run '^$$' -test.bench 'Handler|TLS') >>bin/bench-admission.txt || exit; \
	done
	bin/benchstat -col /server bin/bench-admission.txt

.PHONY: golden
golden: ## Write the golden files of admission anew; look at the diff.
	go test ./webhook -run Golden -update

.PHONY: record
record: $(CLUSTER) ## Record anew what KUBERNETES says of pods' lives, for the unit tests; look at the diff.
	cd test && go build -o ../bin/ ./record
	$(CLUSTER) run --node real $(if $(KUBERNETES),--kubernetes $(KUBERNETES)) -- bin/record resizer/testdata/recorded

.PHONY: cluster-up
cluster-up: $(CLUSTER) ## Build what is missing, start a cluster and print its kubeconfig's path.
	$(CLUSTER) up $(CLUSTER_FLAGS)

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
	@test -x $@ || echo "building $@ (a few minutes the first time)"
	@cd test && go build -o ../bin/ ./cluster/cmd/cluster

# Linking the linter anew takes longer than linting; its pins say when it is needed.
$(LINT): test/lint/go.mod test/lint/go.sum
	@echo "building golangci-lint (about 4 minutes the first time)"
	cd test/lint && go build -o ../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
