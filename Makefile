# `make help` lists the targets. Needed on the machine: make, a C compiler and Python >= 3.10 with its
# headers. Everything else, Go included, comes from PyPI and the
# Go module proxy into .venv.

PYTHON   ?= python3
VENV     ?= .venv
FUZZTIME ?= 30s

PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --quiet --disable-pip-version-check
# Runs a command with Go and the C headers in reach.
WITH := $(PY) tools/toolchain.py
TAGS := -tags=goflat_invariants
# A module of its own.
TENSORS := examples/go/gorgonia

NATIVE_SRC := $(shell find bridge gpu flatten -type f \
	! -name '*_test.go' ! -path '*/testdata/*' ! -path 'gpu/fakecuda/*')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment: one stamp a step, taken again only when something it depends on has changed.

TOO_OLD := import sys; sys.exit(sys.version_info < (3, 10) and \
	"goflat needs Python 3.10 or newer: make PYTHON=python3.12 ...")

$(VENV)/.python:
	@$(PYTHON) -c '$(TOO_OLD)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.build: $(VENV)/.python pyproject.toml tools/build_requires.py tools/toolchain.py
	$(PY) tools/build_requires.py | $(PIP) install --requirement /dev/stdin
	@touch $@

$(VENV)/.native: $(VENV)/.build $(NATIVE_SRC) go.mod go.sum setup.py tools/toolchain.py
	$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.notebooks $(VENV)/.kernels $(VENV)/.wheels: $(VENV)/.%: $(VENV)/.python pyproject.toml
	$(PIP) install --group $*
	@touch $@

.PHONY: build native kernels fmt
build: $(VENV)/.native ## build everything: the Go packages and the extension, in place
	$(WITH) go build ./...

native: $(VENV)/.native ## build the extension into python/goflat and install it editable into .venv

kernels: $(VENV)/.build $(VENV)/.kernels ## regenerate what is committed: PTX, driver trampolines
	$(PY) gpu/kernels/generate.py
	$(WITH) go generate ./...

fmt: $(VENV)/.build $(VENV)/.lint ## format Go and Python
	$(WITH) go tool -modfile=tools/go.mod golangci-lint fmt
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

.PHONY: lint lint-go lint-py lint-gen
lint: lint-go lint-py lint-gen ## all static checks, formatting included

lint-go: $(VENV)/.build
	$(WITH) go vet $(TAGS) ./...
	$(WITH) go -C $(TENSORS) vet ./...
	$(WITH) env CGO_ENABLED=0 go vet $(TAGS) ./flatten ./examples/...
	$(WITH) go tool -modfile=tools/go.mod golangci-lint run

lint-py: $(VENV)/.native $(VENV)/.test $(VENV)/.lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --ignore-missing-stub goflat._core

lint-gen: $(VENV)/.build $(VENV)/.kernels
	@mkdir -p build
	find gpu \( -name '*.ptx' -o -name '*.S' \) -exec sha256sum {} + > build/generated
	@$(MAKE) --no-print-directory kernels
	sha256sum --quiet --check build/generated

.PHONY: test test-go test-py test-race test-gpu
test: test-go test-py ## all tests on the CPU, invariants on

test-go: $(VENV)/.build
	$(WITH) go test -count=1 $(TAGS) ./...
	$(WITH) go -C $(TENSORS) test -count=1 ./...
	@mkdir -p build
	@$(WITH) go test -run='^$$' -bench=. -benchtime=1x ./... > build/bench || { cat build/bench; exit 1; }

test-py: $(VENV)/.native $(VENV)/.test
	$(PY) tools/check_wheel.py python/goflat/_core*.so
	$(PY) -m pytest -m 'not gpu and not slow'

test-race: $(VENV)/.build ## the Go tests under the race detector and checkptr
	$(WITH) go test -count=1 -race $(TAGS) ./...

test-gpu: $(VENV)/.native $(VENV)/.test ## all tests, and a missing GPU is a failure
	GOFLAT_REQUIRE_GPU=1 $(WITH) go test -count=1 $(TAGS) ./...
	GOFLAT_REQUIRE_GPU=1 $(PY) -m pytest

.PHONY: notebooks
notebooks: $(VENV)/.native $(VENV)/.test $(VENV)/.notebooks ## run the notebooks in examples; make docs then shows their outputs
	@rm -rf build/notebooks && mkdir -p build && cp -r examples/notebooks build/notebooks
	$(PY) -m pytest --nbmake --overwrite --nbmake-timeout=300 --timeout=600 build/notebooks

.PHONY: fuzz bench docs demo
fuzz: $(VENV)/.build ## every fuzz target of flatten for FUZZTIME (30s) each
	@for target in $$($(WITH) go test -list '^Fuzz' ./flatten | grep '^Fuzz'); do \
		$(WITH) go test $(TAGS) -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) ./flatten || exit 1; \
	done

bench: $(VENV)/.native $(VENV)/.test ## time against torch.cat and memcpy
	$(WITH) go test -run='^$$' -bench=. -benchmem ./...
	$(PY) -m goflat bench

docs: $(VENV)/.docs ## the documentation site in build/docs; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

demo: $(VENV)/.native $(VENV)/.test ## flatten a small job and print what it costs
	$(PY) -m goflat demo

.PHONY: check wheels clean distclean
check: lint test notebooks docs ## what CI runs

wheels: $(VENV)/.build $(VENV)/.wheels ## tested wheels and the source distribution, in dist; WHEELS=--quick tests less
	$(PY) tools/wheels.py $(WHEELS)

clean: ## remove what was built, keep the downloads in .venv
	rm -rf build dist python/*.egg-info python/goflat/_core*.so $(VENV)/.native
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean ## remove .venv as well
	rm -rf $(VENV)
