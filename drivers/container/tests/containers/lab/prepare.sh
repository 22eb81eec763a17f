#!/usr/bin/env bash
# Installs the programs that the container driver and its tests need, if this is root on Debian; otherwise it names the
# missing programs.
#
#   prepare.sh [--check]   with --check it installs nothing
set -euo pipefail

programs=(runc conmon dnsmasq dhcp_release ip nsenter unshare setpriv mount mmdebstrap busybox tini curl openssl)
packages=(runc conmon dnsmasq-base dnsmasq-utils iproute2 util-linux mount mmdebstrap busybox-static tini curl openssl)
# Debian puts some of them where only root looks.
PATH=$PATH:/usr/sbin:/sbin

missing() {
    local program
    for program in "${programs[@]}"; do type -P "$program" >/dev/null || printf '%s ' "$program"; done
}

# systemd, containerd and the kubelet of every machine share this limit of root, 128 by default.
inotify=/proc/sys/fs/inotify/max_user_instances
if [ "${1:-}" != --check ] && [ "$(id -u)" = 0 ] && [ "$(cat $inotify)" -lt 1024 ]; then echo 1024 >$inotify; fi

if [ -z "$(missing)" ]; then
    [ "$(id -u)" = 0 ] || { echo "The tests of the container driver need root: they make containers." >&2; exit 1; }
    exit 0
fi
if [ "${1:-}" = --check ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "The container driver needs: $(missing)" >&2
    echo "On Debian, as root: apt-get install --no-install-recommends ${packages[*]}" >&2
    exit 1
fi
echo "Installing from Debian for the container driver: $(missing)"
# Another installation may run, and a mirror may stumble.
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
"${apt[@]}" update
DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${packages[@]}" >/dev/null
[ -z "$(missing)" ] || { echo "Still missing after the installation: $(missing)" >&2; exit 1; }
