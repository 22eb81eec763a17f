# `make` lists the targets.

# Image of the provider, and version of a release.
VERSION ?= v0.1.0
IMG ?= ghcr.io/capcmi/cluster-api-provider-cmi:$(VERSION)
# Where `make release` puts a clusterctl repository.
RELEASE_DIR ?= out
# What makes the release, as its provenance says.
BUILDER ?= local
# `no` leaves out the CycloneDX SBOM of the binary, and with it the tool that makes it.
SBOM ?= yes

CARGO ?= cargo
# The installed program, or else the one that the tests build.
KUBECTL ?= $(shell command -v kubectl || $(CARGO) run -q -p management-cluster --example program -- kubectl)
CONTAINER_ENGINE ?= docker

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# `libvirt` for VMs that boot, on a computer with libvirt.
DRIVER ?= simulated

.PHONY: quickstart
quickstart: ## Watch a real Cluster API bring up Machines through this provider, on this computer (DRIVER=libvirt, or as root container).
	@DRIVER='$(DRIVER)' CARGO='$(CARGO)' MAKE_VERSION='$(MAKE_VERSION)' hack/quickstart.sh

.PHONY: record-quickstart
record-quickstart: ## Record `make quickstart` in a terminal, as docs/images/quickstart.svg.
	python3 hack/record-quickstart.py

.PHONY: generate
generate: ## Write config/crd, config/rbac, config/policy, the roles in config/components, the tables of the documentation and the generated code of both kits.
	$(CARGO) run -q --bin capcmi -- manifests --write config
	$(CARGO) run -q -p xtask -- docs README.md docs
	sdk/go/generate.sh
	sdk/python/generate.sh

.PHONY: record-failures
record-failures: ## Cause every failure of tests/suite/failures.rs, and record its signs.
	CAPCMI_RECORD_FAILURES=1 $(CARGO) test --locked --test suite failures:: -- --test-threads=2

.PHONY: check-generated
check-generated: ## Fail when generated files or tables are out of date; part of `make test`.
	$(TEST) --test manifests --bin xtask committed

.PHONY: release
release: ## Write a clusterctl repository to RELEASE_DIR (VERSION=v0.1.0, IMG=…, SBOM=no).
	CARGO='$(CARGO)' SBOM='$(SBOM)' BUILDER='$(BUILDER)' VERSION='$(VERSION)' IMG='$(IMG)' RELEASE_DIR='$(RELEASE_DIR)' KUBECTL='$(KUBECTL)' hack/release.sh

# The folder for the archives of `make archives`, and the computers that they are for.
ARCHIVE_DIR ?= out/archives
ARCHIVES ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64

.PHONY: archives
archives: ## Build archives of capcmi, also for kubectl, in ARCHIVE_DIR (ARCHIVES="linux-amd64 linux-arm64"); wants cargo-zigbuild.
	CARGO='$(CARGO)' VERSION='$(VERSION)' ARCHIVE_DIR='$(ARCHIVE_DIR)' ARCHIVES='$(ARCHIVES)' hack/archives.sh

.PHONY: book
book: ## Build the documentation as a book in out/book and check its links.
	"$$(CARGO='$(CARGO)' hack/cargo-program.sh mdbook 0.5.4 --no-default-features --features search)/mdbook" build
	python3 hack/book/check_links.py out/book

.PHONY: docker-build
docker-build: ## Build the image IMG with CONTAINER_ENGINE.
	$(CONTAINER_ENGINE) build --tag '$(IMG)' .

.PHONY: pin-images
pin-images: ## Write the digests of the base images into the Dockerfile; wants CONTAINER_ENGINE (with buildx) and the network.
	CONTAINER_ENGINE='$(CONTAINER_ENGINE)' hack/pin-base-images.sh

# It links libvirt's C library, which nothing else needs.
WITHOUT_LIBVIRT = --exclude capcmi-driver-libvirt
# Most cases wait for other processes: a thread for each core would leave the cores idle half of the time. Cases run make,
# which has to know nothing of the jobs of this one.
# The API servers spend two fifths of their CPU time on garbage collection with Go's default of 100.
# Always the same packages: cargo enables features by the selected packages, and another selection rebuilds dependencies.
TEST = MAKEFLAGS= GOGC="$${GOGC:-200}" RUST_TEST_THREADS="$${RUST_TEST_THREADS:-8}" $(CARGO) test --workspace $(WITHOUT_LIBVIRT) --locked

.PHONY: test
test: ## Run the tests on real parts: etcd, kube-apiserver, Cluster API, the built provider, drivers in Python and Go.
	@$(MAKE) --no-print-directory --jobs=2 test-rust test-python test-go

.PHONY: test-rust
test-rust:
	$(TEST)

# `lifecycle::hold` is the other half of a test, which starts it. The soak is a short one here.
.PHONY: test-all
test-all: SOAK_SECONDS = 60
test-all: test-python test-go ## Run everything but e2e-libvirt: long cases, the crates, a whole cluster, the container and libvirt drivers, bench-counts and fuzz; two hours.
	$(SOAK) PROPTEST_CASES=2000 $(TEST) --no-fail-fast -- --include-ignored --exact --skip lifecycle::hold
	cd drivers/vsphere && CGO_ENABLED=1 $(GO_TEST) -race -short ./...
	$(MAKE) test-crates test-container test-container-cgroup2 test-cluster test-topology test-shipped test-quickstart-container test-libvirt bench-counts fuzz

# The first time it makes a virtual environment in the user's cache folder.
IN_PYTHON = cd examples/drivers/python && python="$$(./environment.sh)/bin/python" &&

# A file for the report of the gate.
PYTEST_TIMES = $${CAPCMI_TEST_TIMES:+--junitxml="$$CAPCMI_TEST_TIMES/pytest-$(1).xml"}

# The tests in Rust run the conformance suite against the kit.
.PHONY: test-python
test-python: ## Run the tests of the kit for drivers in Python and of the Python drivers alone.
	$(IN_PYTHON) "$$python" -m pytest $(call PYTEST_TIMES,kit) ../../../sdk/python && "$$python" -m pytest $(call PYTEST_TIMES,drivers)

GO_TEST = $(CURDIR)/hack/test-times.py go

# The race detector needs a C compiler. A build of govmomi takes a minute of CPU, so the vSphere driver shares the build of
# its lints here, and has the detector in `make test-all`. The tests in Rust run the conformance suite against both.
.PHONY: test-go
test-go: ## Run the tests of the kit for drivers in Go and of the vSphere driver alone.
	cd sdk/go && CGO_ENABLED=1 $(GO_TEST) -race -short ./...
	cd sdk/go/mcmbridge && CGO_ENABLED=1 $(GO_TEST) -race -short ./...
	cd drivers/vsphere && $(GO_TEST) -short ./...

# A checkout or a git revision to compare the public API with. Default: the release on crates.io, once there is one.
SEMVER_BASELINE ?=

.PHONY: test-crates
test-crates: ## Check that cmi-driver and cmi-grpc can be published: packages, documentation, semantic versions (SEMVER_BASELINE=folder or revision).
	CARGO='$(CARGO)' SEMVER_BASELINE='$(SEMVER_BASELINE)' hack/check-crates.sh

TEST_LIBVIRT = CAPCMI_LIBVIRT_TESTS=required MAKEFLAGS= $(CARGO) test -p capcmi-driver-libvirt --locked

# With an example, for the features of the tests.
.PHONY: prepare-libvirt
prepare-libvirt:
	@drivers/libvirt/tests/lab/prepare.sh
	$(CARGO) clippy -p capcmi-driver-libvirt --all-targets --locked -- -D warnings
	$(CARGO) build --locked --bin capcmi-manager --bin capcmi --example quickstart

.PHONY: test-libvirt
test-libvirt: prepare-libvirt ## Lint and test the libvirt driver, on a separate libvirtd and QEMU; as root it installs Debian packages.
	$(TEST_LIBVIRT)

# A real Cluster API, two hosts, guests that boot: create, roll out, scale down, delete.
SMOKE_CASE = a_machine_deployment_rolls_scales_and_deletes_vms_on_two_hosts

.PHONY: test-libvirt-smoke
test-libvirt-smoke: prepare-libvirt ## Lint the libvirt driver, and run the conformance suite and one case with Cluster API against it.
	@grep -q 'fn $(SMOKE_CASE)()' drivers/libvirt/tests/end_to_end/main.rs || { echo 'SMOKE_CASE names no test' >&2; exit 1; }
	$(CARGO) build -p capcmi-driver-libvirt --locked --example hook --test conformance --test end_to_end
	@$(MAKE) --no-print-directory --jobs=2 smoke-conformance smoke-end-to-end

# Side by side: each leaves the cores idle for half of its time.
.PHONY: smoke-conformance smoke-end-to-end
smoke-conformance:
	$(TEST_LIBVIRT) --test conformance

smoke-end-to-end:
	$(TEST_LIBVIRT) --test end_to_end -- --exact $(SMOKE_CASE)

# The tests that make containers have a feature of their own: without it, cargo neither builds nor runs them.
TEST_CONTAINER = --workspace $(WITHOUT_LIBVIRT) --features capcmi-driver-container/root-tests --test containers --locked

.PHONY: test-container
test-container: ## Lint and test the container driver with real containers; as root it installs Debian packages.
	@drivers/container/tests/containers/lab/prepare.sh
	$(CARGO) clippy $(TEST_CONTAINER) -- -D warnings
	$(CARGO) test $(TEST_CONTAINER)

# The guest is slow: it runs the cases that control groups matter to.
.PHONY: test-container-cgroup2
test-container-cgroup2: ## Test the container driver in a guest with version 2 of control groups.
	@drivers/container/tests/containers/lab/prepare.sh
	@drivers/libvirt/tests/lab/prepare.sh
	export "CARGO_TARGET_$$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER=$(CURDIR)/drivers/container/tests/containers/lab/cgroup2.sh" && \
	$(CARGO) test $(TEST_CONTAINER) -- boots::

# As it is tested, without optimisation: libvirt and QEMU take the time, and the tests have built it.
.PHONY: bench-libvirt
bench-libvirt: ## Measure how long the libvirt driver takes to make and delete VMs, on a separate libvirtd and QEMU.
	@drivers/libvirt/tests/lab/prepare.sh
	$(CARGO) bench -p capcmi-driver-libvirt --locked --profile dev --bench machines

# `qcow2` for a disk, and a release of Kubernetes in images/node/programs/kubernetes.
FORM ?= rootfs
KUBERNETES ?=

.PHONY: node-image
node-image: ## Build the image of a node and print its path (FORM=qcow2, KUBERNETES=v1.36.2); wants root on Debian, and Go.
	@images/node/build.sh '$(FORM)' $(KUBERNETES)

.PHONY: e2e-libvirt
e2e-libvirt: ## Make a whole cluster of VMs by the commands of the tutorial, and delete it; on demand.
	@drivers/libvirt/tests/lab/prepare.sh
	@images/node/prepare.sh
	@command -v guestmount >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends guestmount >/dev/null; }
	$(CARGO) build --locked --bin capcmi-manager --bin capcmi --example quickstart
	$(TEST_LIBVIRT) --test cluster -- --ignored --nocapture

TEST_CLUSTER = --workspace $(WITHOUT_LIBVIRT) --features capcmi-driver-container/root-tests --test cluster --locked

# Its builds need the network. The test itself runs without one.
.PHONY: test-cluster
test-cluster: ## Make a cluster of system containers; scale, break, upgrade and delete it. As root it installs Debian packages.
	@drivers/container/tests/containers/lab/prepare.sh
	@images/node/prepare.sh
	$(CARGO) clippy $(TEST_CLUSTER) -- -D warnings
	$(CARGO) test $(TEST_CLUSTER) -- --nocapture

.PHONY: test-shipped
test-shipped: ## Run the provider as Pods, as it ships, in a cluster of system containers that then manages itself.
	@drivers/container/tests/containers/lab/prepare.sh
	@images/node/prepare.sh
	$(CARGO) test $(TEST_CLUSTER) -- --ignored --nocapture --exact the_provider_runs_as_it_ships

.PHONY: test-topology
test-topology: ## Make a cluster of a ClusterClass of system containers; update it in place, upgrade and delete it.
	@drivers/container/tests/containers/lab/prepare.sh
	@images/node/prepare.sh
	$(CARGO) test $(TEST_CLUSTER) -- --ignored --nocapture --exact a_cluster_of_a_class_is_updated_in_place_and_upgraded

# Nothing may be left of it at the end.
.PHONY: test-quickstart-container
test-quickstart-container: ## Run part 1 of docs/start/first-cluster.md as printed; as root it installs Debian packages.
	@MAKEFLAGS= hack/run-tutorial.py
	@! ip link show dev capcmi-qs1 2>/dev/null && ! pgrep -af '[c]apcmi/quickstart/state' && ! grep capcmi/quickstart /proc/mounts && \
	! ls -d "$${XDG_CACHE_HOME:-$$HOME/.cache}/capcmi/quickstart" 2>/dev/null

PYTHON_SKELETON = crates/capcmi-cli/src/commands/driver/new/python
PYTHON_SOURCES = sdk/python examples/drivers/python $(PYTHON_SKELETON)
PYTHON_TYPED = examples/drivers/python/minimal/driver.py $(PYTHON_SKELETON)/driver.py

.PHONY: lint-python
lint-python: ## Check format, lints, types and generated code of the kit and the drivers in Python.
	sdk/python/generate.sh check
	$(IN_PYTHON) cd ../../.. && "$$python" -m ruff format --check $(PYTHON_SOURCES) && "$$python" -m ruff check $(PYTHON_SOURCES)
	$(IN_PYTHON) cd ../../../sdk/python && "$$python" -m mypy && for driver in $(PYTHON_TYPED); do \
	"$$python" -m mypy $(CURDIR)/$$driver || exit 1; done

.PHONY: lint-go
lint-go: ## Check format, lints and generated code of the kit and the drivers in Go.
	@unformatted=$$(gofmt -l sdk/go examples/drivers/go drivers/vsphere); [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted" >&2; exit 1; }
	sdk/go/generate.sh check
	cd sdk/go && go vet ./... && go vet -tags cmifaults ./cmi && go mod tidy -diff
	cd sdk/go/mcmbridge && go vet ./... && go mod tidy -diff
	cd examples/drivers/go && go vet ./... && go mod tidy -diff
	cd drivers/vsphere && go vet ./... && go mod tidy -diff

.PHONY: lint-prose
lint-prose: ## Check that pages, comments and messages are easy to read (hack/prose.py --help).
	python3 -B -m unittest discover --quiet --start-directory hack
	hack/prose.py

.PHONY: lint
lint: lint-python lint-go lint-prose ## Check format, prose, lints and, where cargo-deny is installed, dependencies, as CI does.
	$(CARGO) fmt --all --check
	CARGO='$(CARGO)' hack/check-features.sh
	$(CARGO) clippy --workspace $(WITHOUT_LIBVIRT) --all-targets --locked -- -D warnings
# `cargo install --locked cargo-deny` takes minutes. Its advisories want the network: `make audit`.
	@if command -v cargo-deny > /dev/null; then $(CARGO) deny --locked check bans licenses sources; \
	else echo 'cargo-deny is not installed: dependencies are not checked'; fi

.PHONY: audit
audit: ## Check dependencies, advisories included; wants cargo-deny and the network.
	$(CARGO) deny --locked check

# Fleet sizes of `make bench`, and where the driver runs (`in-process,grpc` for both). BENCH_ROUNDS says how often
# each is measured.
MACHINES ?= 2000
BENCH_DRIVER ?= in-process
FLEET = BENCH_DRIVER='$(BENCH_DRIVER)' $(CARGO) bench --locked --bench fleet

.PHONY: bench
bench: ## Measure the costs of a fleet, beside bare clients (MACHINES="2000 10000", BENCH_ROUNDS=3, BENCH_DRIVER=in-process,grpc).
	$(FLEET) -- $(MACHINES)

.PHONY: bench-latency
bench-latency: ## Measure how soon the driver is called while creates wait for it (BENCH_BACKLOG=2000, BENCH_SAMPLES=200).
	$(FLEET) -- --scenario latency $(MACHINES)

.PHONY: bench-drift
bench-drift: ## Measure a fleet while 1 % of the VMs change their address each minute (MACHINES=10000).
	$(FLEET) -- --scenario drift $(MACHINES)

.PHONY: bench-shards
bench-shards: ## Measure two providers with half of the fleet each, beside one (BENCH_SHARDS_ALONE=true: without).
	$(FLEET) -- --scenario shards $(MACHINES)

# Counts do not depend on how fast the program is: the build of the tests will do, and a few machines.
.PHONY: bench-counts
bench-counts: ## Fail when a machine costs other writes, Events, conflicts or driver calls than benches/fleet/counts.json has.
	$(CARGO) bench --locked --profile dev --bench fleet -- --scenario counts --driver in-process,grpc 200

# Where `make profile` puts what perf has recorded, and the flame graph.
PROFILE_DIR ?= out/profile

# Its build has symbols and frame pointers. perf is in Debian's linux-perf.
.PHONY: profile
profile: ## Say by part where the provider's CPU time goes, and draw a flame graph, PROFILE_DIR/flame-graph.svg; wants perf.
	@mkdir -p '$(PROFILE_DIR)'
	RUSTFLAGS='-C force-frame-pointers=yes' BENCH_DRIVER='$(BENCH_DRIVER)' $(CARGO) bench --locked --profile profiling \
		--bench fleet -- --scenario profile --perf '$(abspath $(PROFILE_DIR))/perf.data' $(firstword $(MACHINES))
	$(CARGO) run -q -p xtask -- profile '$(PROFILE_DIR)/perf.data' --svg '$(PROFILE_DIR)/flame-graph.svg'

.PHONY: bench-memory
bench-memory: ## Measure the memory of a machine, by part (MACHINES="10000 100000").
	$(CARGO) bench --locked --bench memory -- $(MACHINES)

# How long `make soak` kills at random, and the seed of a run to repeat; without one, another one every time.
SOAK_SECONDS ?= 600
SOAK_SEED ?=
# The fate of orphans during it: `report`, or `delete`, which must not take the VM of a machine that lives.
SOAK_ORPHANS ?= report

SOAK = SOAK_SECONDS='$(SOAK_SECONDS)' SOAK_SEED='$(SOAK_SEED)' SOAK_ORPHANS='$(SOAK_ORPHANS)'

.PHONY: soak
soak: ## Kill replicas, a plugin and the API server at random while machines come and go (SOAK_SECONDS=600, SOAK_SEED=…).
	$(SOAK) $(CARGO) test --locked --test suite soak:: -- --ignored --nocapture

# How long `make fuzz` tries each target.
FUZZ_SECONDS ?= 60

.PHONY: fuzz
fuzz: ## Feed garbage to what reads the wire (FUZZ_SECONDS=60). Needs a C++ compiler.
	@CARGO='$(CARGO)' FUZZ_SECONDS='$(FUZZ_SECONDS)' hack/fuzz.sh
