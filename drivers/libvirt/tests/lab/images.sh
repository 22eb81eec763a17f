#!/usr/bin/env bash
# What some tests need besides the test guest, in its folder:
#
#   images.sh FOLDER   makes FOLDER/boot.raw, a disk that boots the guest by itself, with BIOS (syslinux) and with UEFI
#                      (systemd-boot, which is not signed), and FOLDER/agent-initrd.gz, the guest with QEMU's agent
set -euo pipefail

folder=$(realpath "$1")
busybox=/usr/bin/busybox
[ -x "$busybox" ] || busybox=/bin/busybox
# Debian puts the agent where only root looks.
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d "$folder/.making.XXXXXX")
trap 'rm -rf "$work"' EXIT

disk=$work/boot.raw
options="console=ttyS0 panic=-1 quiet"
truncate -s 40M "$disk"
mformat -i "$disk" -F ::
mmd -i "$disk" ::/EFI ::/EFI/BOOT ::/loader ::/loader/entries
mcopy -i "$disk" "$folder/vmlinuz" "$folder/initrd.gz" ::/
mcopy -i "$disk" /usr/lib/systemd/boot/efi/systemd-bootx64.efi ::/EFI/BOOT/BOOTX64.EFI
mcopy -i "$disk" - ::/loader/entries/guest.conf <<END
title guest
linux /vmlinuz
initrd /initrd.gz
options $options loader=systemd-boot
END
mcopy -i "$disk" - ::/syslinux.cfg <<END
DEFAULT guest
LABEL guest
  LINUX /vmlinuz
  INITRD /initrd.gz
  APPEND $options loader=syslinux
END
syslinux --install "$disk"

agent=$(command -v qemu-ga)
root=$work/root
install -D "$agent" "$root/usr/sbin/qemu-ga"
ldd "$agent" | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$root$library"; done
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$work/agent.gz"
cat "$folder/initrd.gz" "$work/agent.gz" >"$work/agent-initrd.gz"
mv "$disk" "$work/agent-initrd.gz" "$folder"
