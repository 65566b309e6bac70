# Two commands do everything on a fresh machine with Python >= 3.11, make and a package index:
#   make demo    the main job on a real stream (arguments: make demo ARGS="--rows 200000")
#                (in containers: make demo DRIVER=docker, see docs/docker.md)
#   make test    lint, types and the tests that every change has to pass
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
UV_VERSION := 0.13.8
ARCHIVE := $(CURDIR)/build/spark.jsa
# Otherwise each process would compile all that it imports: two seconds at each start of a registry.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test deep quick orders lint checked lock proto bench site release clean

help:
	@echo "make demo [DRIVER=docker] | test | deep [PART=nodes] | quick | orders | lint | lock | proto | bench NAME=throughput | site | release | clean"

setup: $(VENV)/.ready $(VENV)/.jvm

# The environment: exact versions with hashes from requirements.lock, the project itself editable.
$(VENV)/.ready: requirements.lock pyproject.toml
	@for p in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then found=$$p; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "make: Python 3.11 to 3.14 is needed and none is on PATH; install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi; \
	$$found -m venv --clear $(VENV) || { echo "make: $$found cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q runtimes udo_protocol  # a sandboxed instance cannot write what it compiles
	@touch $@

# The jar of the JVM path (docs/spark.md), made by the compiler among Spark's jars, again when its sources or the environment have changed.
$(VENV)/.jvm: $(VENV)/.ready $(wildcard udo_interface/jvm/*.scala)
	@$(BIN)/python -m udo_interface.spark.jar
	@touch $@

demo: setup
	$(BIN)/udo demo $(if $(DRIVER),--driver $(DRIVER)) $(ARGS)

# The gate: what each change has to pass, in CI and on a newcomer's machine (one part: make test ARGS=spark; one file: python -m pytest FILE).
test: checked
	$(BIN)/python -m tests.parts $(ARGS)

# All tests, those marked `long` too, in parts that need not run in one go: make deep, or make deep PART=nodes.
deep: checked
	$(BIN)/python -m tests.parts --deep $(PART) $(ARGS)

# The most telling checks that fit into a minute, to be run by hand.
quick: setup
	@$(MAKE) --no-print-directory --jobs=2 --output-sync quick-lint quick-model quick-protocol quick-engine
quick-lint:
	$(BIN)/ruff check && $(BIN)/mypy
quick-%:
	$(BIN)/python -m pytest -q -x tests/$*

# The gate in five random orders: what a test leaves behind must not matter to the next one. ORDERS=7 runs that order alone.
ORDERS ?= 1 2 3 4 5
orders: checked
	for order in $(ORDERS); do $(BIN)/python -m tests.parts --order $$order || exit 1; done

lint: $(VENV)/.ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The steps before the tests: each keeps one core busy.
checked: $(VENV)/.ready
	@$(MAKE) --no-print-directory --jobs=2 --output-sync $(ARCHIVE) lint $(VENV)/.jvm

# The sessions of the tests are short: a JVM that compiles less, and maps Spark's classes instead of reading them, is done in a third of the time.
JVM := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
# Hundreds of processes load NumPy, and OpenBLAS would start a thread for each core in every one.
test orders: export OPENBLAS_NUM_THREADS := 1
test deep orders: export SPARK_SUBMIT_OPTS := $(JVM) $(if $(word 2,$(CURDIR)),,-XX:SharedArchiveFile=$(ARCHIVE) -Xlog:disable)
$(ARCHIVE): | $(VENV)/.ready
	-$(if $(word 2,$(CURDIR)),,SPARK_SUBMIT_OPTS="$(JVM)" $(BIN)/python -m tests.spark_archive $@)

lock: setup
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements.lock

proto: setup
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. udo_protocol/proto/frame.proto udo_protocol/proto/node_manager.proto udo_protocol/proto/operator.proto
	$(BIN)/python -m grpc_tools.protoc -I. --grpc_python_out=. udo_protocol/proto/node_manager.proto
	$(BIN)/python -m grpc_tools.protoc -Iruntimes/spark_worker --python_out=runtimes/spark_worker --pyi_out=runtimes/spark_worker udo_spark_worker/udf_worker.proto
	cp udo_protocol/proto/operator.proto runtimes/node/sdk/src/
	@# For Go, where protoc-gen-go is on PATH: go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	if command -v protoc-gen-go >/dev/null; then $(BIN)/python -m grpc_tools.protoc -I. --go_out=runtimes/go --go_opt=module=udo.dev/operator udo_protocol/proto/operator.proto; fi
	@# For Rust, where protoc-gen-prost is on PATH: cargo install protoc-gen-prost@0.5.0
	if command -v protoc-gen-prost >/dev/null; then $(BIN)/python -m grpc_tools.protoc -I. --prost_out=runtimes/rust/sdk/src --prost_opt=flat_output_dir=true udo_protocol/proto/operator.proto; fi

bench: setup
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

# The documentation as pages, in build/site.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# In dist/: the source archive, the wheel built from it, and the licences and bill of materials (CycloneDX) of what the wheel brings along.
release: setup
	rm -rf dist build/release
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	$(BIN)/uv venv --quiet --python $(BIN)/python build/release
	$(BIN)/uv pip install --quiet --python build/release --constraints requirements.lock dist/*.whl
	$(BIN)/cyclonedx-py environment build/release/bin/python --output-format JSON --output-file dist/udo-spark.cdx.json
	$(BIN)/pip-licenses --python build/release/bin/python --from=mixed --with-urls --format=markdown --output-file dist/LICENCES.md

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
