#!/bin/sh
# `make quickstart [DRIVER=libvirt|container]`: says what will happen, checks what it takes, builds, and runs examples/quickstart.
set -eu
cd "$(dirname "$0")/.."

CARGO="${CARGO:-cargo}"
DRIVER="${DRIVER:-simulated}"
# As in Cargo.toml and in crates/management-cluster/programs/*/go.mod.
RUST_WANTED=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
GO_WANTED=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' crates/management-cluster/programs/kubernetes/go.mod)

fail() {
    echo "quickstart: $*" >&2
    exit 1
}

# Whether version $1 is at least version $2, by their first two numbers.
at_least() {
    [ "$(echo "$1" | cut -d. -f1)" -gt "$(echo "$2" | cut -d. -f1)" ] || {
        [ "$(echo "$1" | cut -d. -f1)" -eq "$(echo "$2" | cut -d. -f1)" ] &&
            [ "$(echo "$1" | cut -d. -f2)" -ge "$(echo "$2" | cut -d. -f2)" ]
    }
}

case "${MAKE_VERSION:-}" in
    [4-9].* | 3.8[1-9]*) ;;
    *) fail "GNU make 3.81 or later is needed; run \`make quickstart\` with it" ;;
esac
command -v "$CARGO" >/dev/null || fail "cargo is missing: install Rust $RUST_WANTED or later (https://rustup.rs)"
rust=$("$CARGO" --version | cut -d' ' -f2)
at_least "$rust" "$RUST_WANTED" || fail "cargo is $rust, and $RUST_WANTED or later is needed: \`rustup update\`"
command -v cc >/dev/null || fail "cc is missing: install a C compiler, such as gcc or clang"
command -v go >/dev/null || fail "go is missing: install Go $GO_WANTED or later (https://go.dev/dl)"
# Go gets a later version of itself unless it was told not to, since 1.21.
go=$(go env GOVERSION | sed 's/^go//')
if ! at_least "$go" "$GO_WANTED"; then
    { at_least "$go" 1.21 && [ "$(go env GOTOOLCHAIN)" != local ]; } ||
        fail "go is $go, and $GO_WANTED or later is needed (https://go.dev/dl)"
fi

case "$DRIVER" in
    simulated)
        how="plain processes: no containers, no root"
        boot="about 10 s"
        ;;
    libvirt)
        examples/quickstart/libvirt.sh check
        how="plain processes, and VMs, a network and a storage pool of this computer's libvirt"
        boot="seconds with KVM, a minute or two without"
        ;;
    container)
        examples/quickstart/container.sh check
        how="a kubeadm cluster of system containers on this computer"
        ;;
    *) fail "DRIVER is '$DRIVER': it is simulated, libvirt or container" ;;
esac

if [ "$DRIVER" = container ]; then
    cat <<TEXT
This brings up a Cluster with a real Cluster API, $how.
  1. cargo builds the provider and the driver              first time: 7-9 min    later: seconds
  2. go builds etcd, Kubernetes and Cluster API            first time: 8-10 min   later: nothing to do
  3. two node images are built                             first time: 12-15 min  later: nothing to do
     (2 and 3 are kept in ${XDG_CACHE_HOME:-$HOME/.cache}/capcmi)
  4. one control plane and two workers come up                                    60 to 90 s
Ctrl-C ends everything and leaves nothing behind but what was built.

TEXT
    # With sudo, the folder `target` of the clone stays the user's.
    if [ "${SUDO_UID:-0}" != 0 ]; then
        export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/quickstart-target}"
    fi
    # The selection of packages of the tests, so that nothing is built twice.
    "$CARGO" build --workspace --exclude capcmi-driver-libvirt --locked --bin capcmi-manager --bin capcmi \
        --bin capcmi-driver-container --example quickstart
    examples/quickstart/container.sh images
    exec "${CARGO_TARGET_DIR:-target}/debug/examples/quickstart" --driver container "$@"
fi

cat <<TEXT
This brings up Machines on a real Cluster API, with $how.
  1. cargo builds the provider                             first time: 6-8 min    later: seconds
  2. go builds etcd, Kubernetes and Cluster API            first time: 6-8 min    later: nothing to do
     (kept in ${XDG_CACHE_HOME:-$HOME/.cache}/capcmi)
$(printf '%-59s' "  3. they and the provider start, with driver $DRIVER")about 15 s
  4. a MachineDeployment of 3 comes up and is scaled to 5                         $boot
Ctrl-C ends everything and leaves nothing behind but what was built.

TEXT
"$CARGO" build --locked --bin capcmi-manager --bin capcmi --example quickstart
if [ "$DRIVER" = libvirt ]; then "$CARGO" build --locked -p capcmi-driver-libvirt; fi
exec "$CARGO" run --quiet --locked --example quickstart -- --driver "$DRIVER" "$@"
