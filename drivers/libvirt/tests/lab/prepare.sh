#!/usr/bin/env bash
# Installs what the libvirt driver and its tests need, if that is missing and this is root on Debian; else says what is
# missing. No service is started.
#
#   prepare.sh [--check]   with --check it installs nothing
set -euo pipefail

programs=(libvirtd virsh qemu-system-x86_64 qemu-img tini dnsmasq iptables ip busybox curl mount kill unshare setpriv nsenter
    qemu-ga syslinux mcopy openssl ssh ssh-keygen dropbear)
files=(/usr/share/OVMF/OVMF_CODE_4M.fd /usr/lib/systemd/boot/efi/systemd-bootx64.efi /usr/lib/libvirt/virt-aa-helper)
packages=(qemu-utils qemu-system-x86 libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libvirt-dev dnsmasq-base
    iptables iproute2 tini busybox-static curl pkg-config qemu-guest-agent ovmf syslinux mtools systemd-boot-efi openssl
    openssh-client dropbear-bin mount procps)
# Debian puts some of them where only root looks.
PATH=$PATH:/usr/sbin:/sbin

missing() {
    local program file
    for program in "${programs[@]}"; do type -P "$program" >/dev/null || printf '%s ' "$program"; done
    for file in "${files[@]}"; do [ -e "$file" ] || printf '%s ' "$file"; done
    pkg-config --exists libvirt 2>/dev/null || printf 'libvirt.pc '
    getent passwd libvirt-qemu >/dev/null || printf 'the-user-libvirt-qemu '
}

# Services of these packages are not for this computer: the tests start their own.
policy=/usr/sbin/policy-rc.d
policy_is_of='# While prepare.sh of the libvirt driver installs packages.'
# An installation that was killed has left it, and no service would start with its package any more.
if [ "$(id -u)" = 0 ] && grep -qsxF "$policy_is_of" $policy; then rm -f $policy; fi

if [ -z "$(missing)" ]; then
    # Namespaces of their own for the hosts.
    [ "$(id -u)" = 0 ] || { echo "The tests of the libvirt driver need root: they start hosts of their own." >&2; exit 1; }
    exit 0
fi
if [ "${1:-}" = --check ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "The libvirt driver needs: $(missing)" >&2
    echo "On Debian, as root: apt-get install --no-install-recommends ${packages[*]}" >&2
    exit 1
fi
echo "Installing from Debian for the libvirt driver: $(missing)"
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\n%s\nexit 101\n' "$policy_is_of" >$policy
    chmod +x $policy
fi
# Another installation may run, and a mirror may stumble.
apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
"${apt[@]}" update
# An image may bring QEMU's tools from backports, which do not go with the QEMU of the release.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends --allow-downgrades \
    "${packages[@]/#qemu-utils/qemu-utils/$release}" >/dev/null
# Debian makes it with a package that also starts libvirt with the computer.
getent passwd libvirt-qemu >/dev/null || useradd -r -M -d /var/lib/libvirt -s /usr/sbin/nologin libvirt-qemu
[ -z "$(missing)" ] || { echo "Still missing after the installation: $(missing)" >&2; exit 1; }
