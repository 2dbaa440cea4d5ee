# Each target is one line you could type yourself; `make` alone lists them.
.DEFAULT_GOAL := help
EFFORT ?= 1
export EFFORT

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: ## install what is missing, build, and show the main job working
	@tools/demo

test: ## install what is missing and run every check and test
	@tools/test

verify: ## the same tests at full repetition (hours); writes docs/VERIFIED.md
	@tools/verify

bench: ## measure beside peers and write docs/BENCHMARKS.md (QUICK=1 for minutes)
	@tools/bench

lint: ## formatting, clippy and the rules of the tree
	@tools/lint

fmt: ## format the sources
	@cargo fmt --all

tools: ## install and build the outside programs the tests run against
	@tools/install

clean: ## remove build results of this checkout (not the cache of tools)
	@cargo clean

export QUICK KEEP

.PHONY: help demo test verify bench lint fmt tools clean
