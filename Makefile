# make help lists the targets: a target is described by the text after ## on its line.
.DEFAULT_GOAL := help
BIN := bin

.PHONY: help build check format test race bench fuzz schema ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build every program into ./bin
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./cmd/...

test: ## run the tests
	go test ./...

check: format race ## format, vet, staticcheck, tests with the race detector in random order
	go vet ./...
	staticcheck ./...

format: ## fail if a file is not formatted (gofumpt -w . mends it)
	@files=$$(gofumpt -l .) && test -z "$$files" || { echo "run gofumpt -w on:"; echo "$$files"; exit 1; }

race: ## run the tests with the race detector in random order
	go test -race -shuffle=on ./...

bench: ## measure every number of the design beside its comparison
	go run ./bench

fuzz: ## run the fuzz targets of the plan format, 50000 inputs each
	go test -run '^$$' -fuzz '^FuzzParseYAML$$' -fuzztime 50000x ./pkg/plan
	go test -run '^$$' -fuzz '^FuzzParseJSON$$' -fuzztime 50000x ./pkg/plan

schema: ## write the JSON Schemas anew after a change of the structs of plans, pool files and messages
	go test ./pkg/plan -run TestSchema_IsGenerated -update
	go test ./pkg/poolfile -run TestSchema_IsGenerated -update
	go test ./pkg/events -run Schemas -update

ci: ## run all that continuous integration runs
	.ci/run
