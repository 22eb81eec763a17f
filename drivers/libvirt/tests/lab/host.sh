#!/usr/bin/env bash
# A libvirt host for tests: a libvirtd with folders, network and socket of its own, beside whatever else runs here.
#
#   host.sh up FOLDER     starts it in the foreground; ends at SIGTERM, with all its guests
#   host.sh ready FOLDER  waits until it answers, and gives it a network and storage pools the first time
#
# It needs root, and what `make test-libvirt` installs. Socket: FOLDER/run/libvirt-sock; consoles and disks:
# FOLDER/machines; base images: FOLDER/images. FOLDER/failing-starts, where it is there, has a number: so many starts of
# guests fail.
set -euo pipefail

here=$(realpath "$0")
command=$1
folder=$(realpath -m "$2")
# A host has the libvirt of its own folders, and not what the caller may mean by libvirt.
unset LIBVIRT_DEFAULT_URI
# Debian puts some programs where only root looks.
PATH=$PATH:/usr/sbin:/sbin

configure() {
    mkdir -p "$folder"/{run,lib,etc/hooks,log,cache,images,machines}
    [ -s "$folder/uuid" ] || cat /proc/sys/kernel/random/uuid >"$folder/uuid"
    cat >"$folder/etc/libvirtd.conf" <<END
unix_sock_rw_perms = "0700"
auth_unix_ro = "none"
auth_unix_rw = "none"
host_uuid = "$(cat "$folder/uuid")"
log_outputs = "3:file:$folder/log/libvirtd.log"
END
    # As root, since /dev/kvm may be closed to others: then QEMU is probed at every start. No log daemon.
    cat >"$folder/etc/qemu.conf" <<END
user = "root"
group = "root"
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
namespaces = [ ]
cgroup_controllers = [ ]
stdio_handler = "file"
END
    # What an administrator has libvirt ask before each start.
    cat >"$folder/etc/hooks/qemu" <<END
#!/bin/sh
[ "\$2/\$3" = prepare/begin ] && [ -e "$folder/failing-starts" ] || exit 0
read -r left <"$folder/failing-starts"
[ "\$left" -gt 0 ] || exit 0
echo \$((left - 1)) >"$folder/failing-starts"
echo "no guest may start now" >&2
exit 1
END
    chmod +x "$folder/etc/hooks/qemu"
}

case $command in
up)
    configure
    # Namespaces of its own: its folders stand where libvirt wants them, and its bridge is seen by nothing else.
    exec unshare --mount --net --propagation private "$here" inside "$folder"
    ;;
inside)
    rm -f "$folder/ended"
    trap 'touch "$folder/ended"' EXIT
    ip link set lo up
    for place in run:/run/libvirt lib:/var/lib/libvirt etc:/etc/libvirt log:/var/log/libvirt cache:/var/cache/libvirt; do
        mkdir -p "${place#*:}"
        mount --bind "$folder/${place%%:*}" "${place#*:}"
    done
    # What is left of guests is reaped here: libvirt waits for it.
    exec tini -s -- "$here" supervise "$folder"
    ;;
supervise)
    # A libvirtd that is killed is started again, and finds its guests.
    rm -f "$folder/stop"
    trap 'touch "$folder/ended"' EXIT
    daemon=
    # One that a test has stopped does not end before it goes on.
    end() { [ -z "$daemon" ] || kill -TERM "$daemon" 2>/dev/null && kill -CONT "$daemon" 2>/dev/null || true; }
    trap 'touch "$folder/stop"; end' TERM INT
    while [ ! -e "$folder/stop" ]; do
        # One that was killed right before it started a QEMU takes the domain for starting for ever, with the state change lock
        # held: it looks for no process where it had noted none. See docs/back-ends/libvirt-operations.md.
        grep -ls "<domstatus .*pid='0'" /run/libvirt/qemu/*.xml | xargs -r rm -- || true
        listen=()
        ! grep -q '^listen_tls = 1' "$folder/etc/libvirtd.conf" || listen=(--listen)
        libvirtd "${listen[@]}" --config /etc/libvirt/libvirtd.conf --pid-file /run/libvirt/libvirtd.pid \
            >>"$folder/log/stdout" 2>&1 &
        daemon=$!
        [ ! -e "$folder/stop" ] || end
        code=0
        wait "$daemon" || code=$?
        # One that fails by itself can't run here; one that was killed, or asked to end, is started again.
        [ $code = 0 ] || [ $code -gt 128 ] || break
        # `down` keeps it down.
        while [ -e "$folder/down" ] && [ ! -e "$folder/stop" ]; do sleep 0.1; done
        sleep 0.05
    done
    # Guests and the DHCP server outlive libvirtd. Nothing else is in this network namespace.
    own=$(readlink /proc/self/ns/net)
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        case $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null || true) in
        *qemu-system* | *dnsmasq*) [ "$(readlink "$process/ns/net" || true)" != "$own" ] || kill -KILL "$pid" || true ;;
        esac
    done
    ;;
ready)
    export LIBVIRT_DEFAULT_URI="qemu+unix:///system?socket=$folder/run/libvirt-sock"
    tries=0
    until virsh -q uri >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -eq 1200 ] || [ -e "$folder/ended" ]; then
            find "$folder/log" -type f -exec tail -n 20 {} + >&2
            echo "libvirtd does not answer" >&2
            exit 1
        fi
        sleep 0.05
    done
    if ! virsh -q net-info default >/dev/null 2>&1; then
        virsh -q net-define /dev/stdin <<END
<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'>
  <name>default</name>
  <bridge name='virbr0' stp='off' delay='0'/>
  <ip address='192.168.122.1' netmask='255.255.255.0'><dhcp><range start='192.168.122.2' end='192.168.122.239'/></dhcp></ip>
  <dnsmasq:options><dnsmasq:option value='no-ping'/></dnsmasq:options>
</network>
END
        virsh -q net-autostart default
        virsh -q net-start default
        for pool in images machines; do
            virsh -q pool-define-as "$pool" dir --target "$folder/$pool" >/dev/null
            virsh -q pool-autostart "$pool"
            virsh -q pool-start "$pool"
        done
    fi
    ;;
*)
    echo "usage: host.sh up|ready FOLDER" >&2
    exit 2
    ;;
esac
