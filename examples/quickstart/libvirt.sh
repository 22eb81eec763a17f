#!/usr/bin/env bash
# The quickstart's objects on a host with libvirt: a storage pool, a network, and the domains whose disks are in that pool.
# Nothing else of the host is touched.
#
#   libvirt.sh check       names missing packages, and how to get them
#   libvirt.sh up FOLDER   makes pool and network, and writes the driver's configuration to FOLDER/driver.yaml
#   libvirt.sh down        removes all of it, also after a quickstart that was killed
#
# LIBVIRT_DEFAULT_URI: the libvirt of this computer, qemu:///system unless told otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."

export LIBVIRT_DEFAULT_URI="${LIBVIRT_DEFAULT_URI:-qemu:///system}"
NAME=capcmi-quickstart
FOLDER=/var/lib/libvirt/$NAME
BRIDGE=capcmi-qs0
GUEST=drivers/libvirt/tests/lab/guest.sh
# How long a guest may take to boot with KVM before it counts as not working.
KVM_SECONDS=20
# Debian puts some programs where only root looks.
PATH=$PATH:/usr/sbin:/sbin

fail() {
    printf 'quickstart: %s\n' "$*" >&2
    exit 1
}

check() {
    local packages=() said
    has() { command -v "$1" >/dev/null; }
    has virsh || packages+=(libvirt-clients)
    has qemu-system-x86_64 || packages+=(qemu-system-x86)
    has qemu-img || packages+=(qemu-utils)
    has dnsmasq || packages+=(dnsmasq-base)
    # Tools for building the driver.
    if ! has pkg-config || ! pkg-config --exists libvirt; then packages+=(pkg-config libvirt-dev); fi
    # The guest is made of it, and has no libraries.
    if ! has busybox || ldd "$(command -v busybox)" >/dev/null 2>&1; then packages+=(busybox-static); fi
    if ! has libvirtd && ! has virtqemud; then packages+=(libvirt-daemon-system); fi
    if [ ${#packages[@]} -gt 0 ]; then
        fail "DRIVER=libvirt lacks packages. On Debian, as root:
  apt-get install --no-install-recommends ${packages[*]}"
    fi
    has apt-get || fail "DRIVER=libvirt makes its guests from a kernel package of Debian, and there is no apt-get here"
    case $LIBVIRT_DEFAULT_URI in
    qemu:///system | qemu+unix:///system*) ;;
    *) fail "LIBVIRT_DEFAULT_URI is $LIBVIRT_DEFAULT_URI: the quickstart needs the system's libvirt of this computer, qemu:///system" ;;
    esac
    said=$(virsh -q uri 2>&1 >/dev/null) || fail "there is no way to $LIBVIRT_DEFAULT_URI: $said
  Where it does not run:     systemctl start libvirtd     (package libvirt-daemon-system)
  Where it lets you not in:  adduser $(id -un) libvirt, as root, and log in again"
}

# The folder with the guest, which is made once for each version of its script.
guest() {
    local version folder
    version=$(sha256sum "$GUEST" | cut -c1-16)
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/libvirt-guest/$version
    if [ ! -e "$folder/made" ]; then
        "$GUEST" "$folder" >&2
        touch "$folder/made"
    fi
    printf '%s\n' "$folder"
}

upload() {
    virsh -q vol-create "$NAME" /dev/stdin <<END
<volume>
  <name>$(basename "$1")</name>
  <capacity unit='bytes'>$(stat -c %s "$1")</capacity>
  <target><format type='raw'/><permissions><mode>0644</mode></permissions></target>
</volume>
END
    virsh -q vol-upload --pool "$NAME" "$(basename "$1")" "$1"
}

# The first range of addresses that the host does not use.
network() {
    local third said=
    for third in 231 232 233 234 235 236 237 238 239; do
        said=$(virsh -q net-create /dev/stdin 2>&1 <<END
<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'>
  <name>$NAME</name>
  <bridge name='$BRIDGE' stp='off' delay='0'/>
  <ip address='192.168.$third.1' netmask='255.255.255.0'>
    <dhcp><range start='192.168.$third.2' end='192.168.$third.254'/></dhcp>
  </ip>
  <dnsmasq:options><dnsmasq:option value='no-ping'/></dnsmasq:options>
</network>
END
        ) && return
    done
    fail "libvirt makes no network: $said"
}

# `kvm` where a guest boots with it, which libvirt does not know; else `qemu`. A guest without a seed switches itself off.
virt_type() {
    local probe=$NAME-probe state= deadline
    if ! virsh -q define /dev/stdin >/dev/null 2>&1 <<END
<domain type='kvm'>
  <name>$probe</name>
  <memory unit='MiB'>128</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$FOLDER/vmlinuz</kernel>
    <initrd>$FOLDER/initrd.gz</initrd>
    <cmdline>console=ttyS0 panic=-1 quiet</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='host-model'/>
  <on_poweroff>destroy</on_poweroff>
  <on_crash>destroy</on_crash>
  <on_reboot>destroy</on_reboot>
  <devices>
    <serial type='pty'/>
    <memballoon model='none'/>
  </devices>
</domain>
END
    then
        echo qemu
        return
    fi
    if virsh -q start "$probe" >/dev/null 2>&1; then
        deadline=$((SECONDS + KVM_SECONDS))
        while state=$(virsh -q domstate --reason "$probe") && [[ $state == running* ]] && [ $SECONDS -lt $deadline ]; do
            sleep 0.5
        done
        virsh -q destroy "$probe" >/dev/null 2>&1 || true
    fi
    virsh -q undefine "$probe" >/dev/null
    if [[ $state == 'shut off (shutdown)'* ]]; then echo kvm; else echo qemu; fi
}

up() {
    local guest file type
    down
    guest=$(guest)
    virsh -q pool-define-as "$NAME" dir --target "$FOLDER" >/dev/null
    virsh -q pool-build "$NAME" >/dev/null
    virsh -q pool-start "$NAME" >/dev/null
    for file in vmlinuz initrd.gz base.qcow2; do upload "$guest/$file" >/dev/null; done
    virsh -q pool-refresh "$NAME" >/dev/null
    network
    type=$(virt_type)
    cat >"$1/driver.yaml" <<END
virtType: $type
hosts:
  here: {uri: "$LIBVIRT_DEFAULT_URI", reservedMemoryMib: 256}
vmPools:
  default: {storagePool: $NAME, network: $NAME, image: tiny, maxDiskGb: 1}
networks:
  $NAME: {network: $NAME}
sizes:
  small: {cpus: 1, memoryMib: 128}
images:
  tiny:
    storagePool: $NAME
    volume: base.qcow2
    format: qcow2
    sha256: $(sha256sum "$guest/base.qcow2" | cut -d' ' -f1)
    directBoot:
      kernel: $FOLDER/vmlinuz
      initrd: $FOLDER/initrd.gz
      commandLine: console=ttyS0 panic=-1 quiet
END
    case $type in
    kvm) echo "guests run with KVM" ;;
    *) echo "guests are emulated: none boots with KVM here" ;;
    esac
}

down() {
    local domain volume
    while read -r domain; do
        [ -n "$domain" ] || continue
        if [ "$domain" = "$NAME-probe" ] || virsh -q dumpxml "$domain" | grep -F -e "<source file='$FOLDER/" -e "pool='$NAME'" >/dev/null; then
            virsh -q destroy "$domain" >/dev/null 2>&1 || true
            virsh -q undefine "$domain" >/dev/null
        fi
    done < <(virsh -q list --all --name)
    if virsh -q net-info "$NAME" >/dev/null 2>&1; then virsh -q net-destroy "$NAME" >/dev/null; fi
    if virsh -q pool-info "$NAME" >/dev/null 2>&1; then
        # Nothing is deleted of a pool that is not active.
        virsh -q pool-start "$NAME" >/dev/null 2>&1 || true
        virsh -q pool-refresh "$NAME" >/dev/null
        while read -r volume _; do
            [ -z "$volume" ] || virsh -q vol-delete --pool "$NAME" "$volume" >/dev/null
        done < <(virsh -q vol-list "$NAME")
        virsh -q pool-destroy "$NAME" >/dev/null
        virsh -q pool-delete "$NAME" >/dev/null
        virsh -q pool-undefine "$NAME" >/dev/null
    fi
}

case "${1:-}:$#" in
check:1) check ;;
up:2) up "$2" ;;
down:1) down ;;
*) fail "usage: libvirt.sh check|up FOLDER|down" ;;
esac
