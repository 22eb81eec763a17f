#!/usr/bin/env bash
# Makes a small Debian with systemd and cloud-init, and prints its folder. The folder is reused until an input changes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
sources=/etc/apt/sources.list.d/debian.sources
[ -e "$sources" ] || sources=/etc/apt/sources.list
cache=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/container-image
folder=$cache/debian-$release-$(cat "$here/image.sh" "$here/cloud.cfg" | sha256sum | cut -c1-12)
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder" ] || { echo "$folder"; exit 0; }
echo "making a root file system of Debian (only the first time; this takes a minute)" >&2

packages=(systemd-sysv dbus procps mount util-linux cloud-init ifupdown isc-dhcp-client resolvconf iproute2 netbase)
rm -rf "$folder.part"
# No host name and no machine id: each machine gets its own. Each cloud-init module takes time.
mmdebstrap --quiet --mode=root --variant=minbase --include="${packages[*]}" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='chroot "$1" passwd --quiet --lock root' \
    --customize-hook='chroot "$1" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer e2scrub_reap.service' \
    --customize-hook='rm -rf "$1/etc/hostname" "$1/etc/resolvconf/resolv.conf.d/original"; : >"$1/etc/machine-id"; mkdir -p "$1/etc/network/interfaces.d"' \
    --customize-hook='cat "'"$here"'/cloud.cfg" >"$1/etc/cloud/cloud.cfg.d/95_test.cfg"' \
    --format=directory "$release" "$folder.part" "$sources" >&2
mv "$folder.part" "$folder"
echo "$folder"
