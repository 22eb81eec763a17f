#!/usr/bin/env bash
# Machines of the quickstart that are system containers: node images, and the folder and bridge of the container driver.
#
#   container.sh check       installs missing packages as root on Debian, otherwise names them
#   container.sh images      builds the node images of two Kubernetes versions
#   container.sh up FOLDER   makes FOLDER with the driver's configuration; prints the Cluster's address, version and image
#   container.sh down FOLDER removes FOLDER, its machines and the bridge, also those of a quickstart that was killed
set -euo pipefail
cd "$(dirname "$0")/../.."

BRIDGE=capcmi-qs1
# Debian puts some programs where only root looks.
PATH=$PATH:/usr/sbin:/sbin

fail() {
    printf 'quickstart: %s\n' "$*" >&2
    exit 1
}

check() {
    [ "$(id -u)" = 0 ] || fail "DRIVER=container needs root, since it makes containers: sudo make quickstart DRIVER=container"
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi
    # Found before the builds: debian.sh and build.sh look again.
    [ -e /etc/debian_version ] && grep -qx 'ID=debian' /etc/os-release ||
        fail "DRIVER=container makes node images from this computer's release of Debian, and this is another system"
    mkdir -p "$cache"
    [ "$(stat -f -c %T "$cache")" != overlayfs ] ||
        fail "$cache is on overlayfs, where containerd cannot unpack images: set XDG_CACHE_HOME to a folder on a disk"
    drivers/container/tests/containers/lab/prepare.sh
    images/node/prepare.sh
    local lock=$cache/quickstart/state/lock
    # The driver of a quickstart that runs has this lock.
    [ ! -e "$lock" ] || flock --nonblock "$lock" true || fail "another quickstart with DRIVER=container runs: end it with Ctrl-C"
}

# Two versions, so that the Cluster can be upgraded.
versions() { ls images/node/programs/kubernetes | sort -V | tail -2; }

image() { images/node/build.sh rootfs "$1" | tail -1; }

# The first range of addresses that the host does not use.
range() {
    local third
    for third in 231 232 233 234 235 236 237 238 239; do
        if ! ip -4 route | grep -qF "192.168.$third."; then
            echo "192.168.$third"
            return
        fi
    done
    fail "the host uses 192.168.231.0/24 to 192.168.239.0/24: no range is left for machines"
}

up() {
    local range version images= first
    down "$1"
    range=$(range)
    first=$(versions | head -1)
    mkdir -p -m 0700 "$1"
    for version in $(versions); do images+="  node-${version//./-}: $(image "$version")"$'\n'; done
    cat >"$1/driver.yaml" <<END
stateDir: $1/state
hosts: {here: {}}
vmPools: {default: {image: node-${first//./-}}}
sizes:
  medium: {cpus: 2, memoryMib: 2048}
  small: {cpus: 2, memoryMib: 2048}
images:
${images}bridge:
  name: $BRIDGE
  address: $range.1/24
  dhcpRange: {first: $range.101, last: $range.199}
END
    echo "$range.100 $first node-${first//./-}"
}

down() {
    local container
    for container in "$1"/state/runtime/*/; do
        [ -d "$container" ] || continue
        runc --root "$1/state/runtime" delete --force "$(basename "$container")"
    done
    if [ -e "$1/state/dnsmasq.pid" ]; then pkill -TERM -F "$1/state/dnsmasq.pid" dnsmasq || true; fi
    if ip link show dev $BRIDGE >/dev/null 2>&1; then ip link delete dev $BRIDGE; fi
    rm -rf --one-file-system "$1"
}

case "${1:-}:$#" in
check:1) check ;;
images:1) for version in $(versions); do image "$version" >/dev/null; done ;;
up:2) up "$2" ;;
down:2) down "$2" ;;
*) fail "usage: container.sh check|images|up FOLDER|down FOLDER" ;;
esac
