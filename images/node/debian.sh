#!/usr/bin/env bash
# Makes a root file system of this computer's Debian release with the packages of a node, and prints the path of its archive.
# The archive is reused until this script changes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

system=$(. /etc/os-release && echo "$ID ${VERSION_CODENAME:-}")
release=${system#debian }
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
if [ "$release" = "$system" ] || [ ! -e "$sources" ]; then
    echo "The node image is made from this computer's release of Debian; this is $system, and its sources would be $sources" >&2
    exit 1
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/node-image
archive=$cache/debian-$release-$(sha256sum "$here/debian.sh" | cut -c1-12).tar
mkdir -p "$cache"
exec 9>"$archive.lock"
flock 9
[ ! -e "$archive" ] || { echo "$archive"; exit 0; }
echo "making a root file system of Debian (only the first time; this takes minutes)" >&2

# resolvconf applies the name servers of a static network configuration. kube-proxy's container image takes nftables and
# iptables from here.
packages=(linux-image-cloud-amd64 initramfs-tools systemd-sysv dbus udev kmod procps mount util-linux e2fsprogs cloud-init
    ifupdown isc-dhcp-client resolvconf iproute2 iptables nftables netbase ca-certificates qemu-guest-agent containernetworking-plugins)
# No host name, machine id or name server: each machine gets its own.
mmdebstrap --quiet --mode=root --variant=minbase --include="${packages[*]}" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='chroot "$1" passwd --quiet --lock root' \
    --customize-hook='rm -rf "$1/etc/hostname" "$1/etc/resolvconf/resolv.conf.d/original" "$1"/run/*' \
    --customize-hook=': >"$1/etc/machine-id"; mkdir -p "$1/etc/network/interfaces.d"' \
    --format=tar "$release" "$archive.part" "$sources" >&2
mv "$archive.part" "$archive"
echo "$archive"
