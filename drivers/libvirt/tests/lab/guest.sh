#!/usr/bin/env bash
# A guest that boots in seconds under emulation: Debian's kernel with busybox. It reads its NoCloud seed, with a static
# IPv4 address and gateway of its first interface, or what there is for Ignition, runs user data that begins with `#!`,
# serves what it has read to its network (port 80: user-data, meta-data, root-sectors, boot-id), and stops when the power
# button is pressed, after it has given back its address. Without bootstrap data it stops at once. It starts the guest agent,
# where an archive beside its own has one.
#
#   guest.sh FOLDER   makes FOLDER/vmlinuz, FOLDER/initrd.gz and FOLDER/base.qcow2, an empty disk
#
# It needs busybox-static and qemu-utils, and fetches the kernel as a Debian package without installing it.
set -euo pipefail

folder=$(realpath -m "$1")
busybox=/usr/bin/busybox
[ -x "$busybox" ] || busybox=/bin/busybox
mkdir -p "$folder"
# Beside what is made, so that it is moved in one piece: two may make it at once.
work=$(mktemp -d "$folder/.making.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Lists of its own: those of the computer may be missing or old, and are root's.
mkdir -p "$work/lists/partial" "$work/archives/partial"
options=(-q -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o "APT::Sandbox::User=$(id -un)"
    -o Acquire::Retries=3 -o APT::Update::Error-Mode=any)
apt-get "${options[@]}" update >&2
package=$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 | awk '/Depends: linux-image/{print $2; exit}')
[ -n "$package" ] || { echo "apt's sources have no package linux-image-cloud-amd64: is this Debian?" >&2; exit 1; }
(cd "$work" && apt-get "${options[@]}" download "$package" >&2 && dpkg -x "$package"_*.deb kernel)
version=$(ls "$work/kernel/lib/modules")

root=$work/root
modules=$root/lib/modules/$version
mkdir -p "$root"/{bin,sbin,etc/acpi/PWRF,proc,sys,dev,tmp,mnt,www,usr/bin,usr/sbin,etc/udhcpc} "$modules"
cp "$busybox" "$root/bin/busybox"
for name in virtio/virtio virtio/virtio_ring virtio/virtio_pci virtio/virtio_pci_modern_dev virtio/virtio_pci_legacy_dev \
    block/virtio_blk net/net_failover net/virtio_net cdrom/cdrom char/hw_random/virtio-rng virtio/virtio_balloon \
    char/virtio_console firmware/qemu_fw_cfg input/evdev acpi/button; do
    install -D "$work/kernel/lib/modules/$version/kernel/drivers/$name.ko" "$modules/kernel/drivers/$name.ko"
done
for name in net/core/failover fs/isofs/isofs; do
    install -D "$work/kernel/lib/modules/$version/kernel/$name.ko" "$modules/kernel/$name.ko"
done
"$busybox" depmod -b "$root" "$version"

# The agent calls it with arguments, and awaits its end.
cat >"$root/sbin/shutdown" <<'END'
#!/bin/sh
[ $# -gt 0 ] && by=agent || by='power button'
echo "GUEST stops by its $by" >/dev/console
{
    killall udhcpc 2>/dev/null
    for i in $(seq 20); do pidof udhcpc >/dev/null || break; sleep 0.1; done
    poweroff -f
} &
END
printf '#!/bin/sh\nexec shutdown\n' >"$root/etc/acpi/PWRF/00000080"
cat >"$root/etc/udhcpc/default.script" <<'END'
#!/bin/sh
[ "$1" != bound ] || ifconfig "$interface" "$ip" netmask "${subnet:-255.255.255.0}"
END
cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
exec >/dev/console 2>&1 </dev/null
for module in virtio_pci virtio_blk virtio_net virtio_balloon virtio-rng virtio_console qemu_fw_cfg isofs evdev button; do
    modprobe $module
done
acpid -d -c /etc/acpi >/tmp/acpid.log 2>&1 &
ifconfig lo 127.0.0.1
echo "GUEST firmware=$([ -d /sys/firmware/efi ] && echo efi || echo bios) $(cat /proc/cmdline)"
ignition=/sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw
if [ -e $ignition ]; then
    cat $ignition >/www/user-data
    echo "GUEST ignition user-data=$(sha256sum </www/user-data | cut -d' ' -f1) disks=$(ls /sys/block | grep -c '^vd')"
    own=/sys/firmware/qemu_fw_cfg/by_name/opt/io.capcmi
    echo "GUEST told hostname=$(cat $own/hostname/raw) provider_id=$(cat $own/provider_id/raw)"
else
    for i in $(seq 20); do seed=$(findfs LABEL=cidata 2>/dev/null) && break; sleep 0.2; done
    if ! mount -o ro -t iso9660 "$seed" /mnt; then
        echo "GUEST without bootstrap data"
        poweroff -f
    fi
    cp /mnt/user-data /mnt/meta-data /www
    sed -n '/^  eth0:/,/^  eth1:/p' /mnt/network-config >/tmp/eth0
    address=$(sed -n 's/^    addresses: \["\([0-9.]*\/[0-9]*\)".*/\1/p' /tmp/eth0)
    gateway=$(sed -n 's/^    routes: .*to: "0.0.0.0\/0", via: "\([0-9.]*\)".*/\1/p' /tmp/eth0)
    hostname "$(sed -n 's/^local-hostname: *"\(.*\)"$/\1/p' /www/meta-data)"
    echo "GUEST seed hostname=$(hostname) $(sed -n 's/^provider_id: */provider_id=/p' /www/meta-data) user-data=$(sha256sum </www/user-data | cut -d' ' -f1)"
fi
ifconfig eth0 up
if [ -n "$address" ]; then
    ip address add "$address" dev eth0
    [ -z "$gateway" ] || ip route add default via "$gateway"
    echo "GUEST routes $(ip route | tr '\n' ' ')"
else
    udhcpc -i eth0 -n -R -t 20 -T 1 >/dev/null 2>&1
fi
echo "GUEST address=$(ifconfig eth0 | sed -n 's/.*inet addr:\([0-9.]*\).*/\1/p') mac=$(cat /sys/class/net/eth0/address)"
echo "GUEST disk=$(cat /sys/block/vda/size) sectors"
cat /sys/block/vda/size >/www/root-sectors
cat /proc/sys/kernel/random/boot_id >/www/boot-id
httpd -h /www
port=$(grep -ls '^org.qemu.guest_agent.0$' /sys/class/virtio-ports/*/name | cut -d/ -f5)
if [ -x /usr/sbin/qemu-ga ] && [ -n "$port" ]; then qemu-ga -m virtio-serial -p "/dev/$port" -t /tmp -l /tmp/agent.log & fi
if [ "$(head -c 2 /www/user-data)" = '#!' ]; then cp /www/user-data /tmp/user-data; chmod +x /tmp/user-data; /tmp/user-data; fi
echo "GUEST done"
while :; do sleep 3600; done
END
chmod +x "$root/init" "$root/sbin/shutdown" "$root/etc/acpi/PWRF/00000080" "$root/etc/udhcpc/default.script"
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd.gz"
qemu-img create -q -f qcow2 "$work/base.qcow2" 64M
cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
mv "$work/vmlinuz" "$work/initrd.gz" "$work/base.qcow2" "$folder"
