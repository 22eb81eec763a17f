#!/usr/bin/env bash
# Installs what the node image is built with, if that is missing and this is root on Debian; else says what is missing.
set -euo pipefail

packages=(mmdebstrap e2fsprogs qemu-utils gcc libc6-dev libseccomp-dev pkg-config)
# Debian puts some programs where only root looks.
PATH=$PATH:/usr/sbin:/sbin
missing() {
    local program
    for program in mmdebstrap mke2fs qemu-img gcc; do command -v "$program" >/dev/null || printf '%s ' "$program"; done
    pkg-config --exists libseccomp 2>/dev/null || printf 'libseccomp.pc '
}

command -v go >/dev/null || { echo "The node image needs Go, which is not on the PATH: https://go.dev/dl" >&2; exit 1; }
[ -n "$(missing)" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "The node image needs: $(missing)" >&2
    echo "On Debian, as root: apt-get install --no-install-recommends ${packages[*]}" >&2
    exit 1
fi
echo "Installing from Debian for the node image: $(missing)" >&2
# Another installation may run, and a mirror may stumble.
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
"${apt[@]}" update
DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${packages[@]}" >/dev/null
[ -z "$(missing)" ] || { echo "Still missing after the installation: $(missing)" >&2; exit 1; }
