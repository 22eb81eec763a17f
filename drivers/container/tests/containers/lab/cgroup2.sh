#!/usr/bin/env bash
# Runs a test program in a guest with version 2 of control groups alone, as Debian has it. The guest sees this computer's
# files, and what it writes is lost. It is emulated, which takes minutes.
#
#   cgroup2.sh PROGRAM [ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

for program in qemu-system-x86_64 /usr/lib/qemu/virtiofsd mke2fs busybox; do
    type -P "$program" >/dev/null || { echo "$program is missing: install qemu-system-x86 e2fsprogs busybox-static" >&2; exit 1; }
done
image=$("$here/image.sh")
debian=$("$here/../../../../../images/node/debian.sh")
work=$(mktemp -d)
started=()
end() {
    [ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM HUP

tar -C "$work" --wildcards -xf "$debian" './boot/vmlinuz-*' './usr/lib/modules/*'
kernel=$(echo "$work"/boot/vmlinuz-*)
root=$work/initrd
mkdir -p "$root"/{bin,modules}
cp "$(type -P busybox)" "$root/bin/busybox"
# Each after those that it needs.
modules=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk fuse virtiofs overlay veth llc
    stp bridge)
for module in "${modules[@]}"; do find "$work/usr/lib/modules" -name "$module.ko" -exec cp {} "$root/modules" \;; done
echo "${modules[@]}" >"$root/modules/order"
cat >"$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /written /root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod "/modules/$module.ko"; done
mount -t virtiofs -o ro host /host && mount -t tmpfs written /written && mkdir /written/upper /written/work &&
    mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work root /root
for folder in proc sys dev; do mount --move /$folder /root/$folder; done
exec switch_root /root /bin/bash "$(cat /script)"
END
chmod +x "$root/init"
echo "$work/script" >"$root/script"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initrd.img"

truncate -s 3G "$work/cache.raw"
mkdir "$work/cache"
cp -a "$image" "$work/cache"
touch "$work/cache/${image##*/}.lock"
mke2fs -q -t ext4 -d "$work/cache" "$work/cache.raw"
rm -r "$work/cache"
{
    echo 'mkdir -p /dev/pts /dev/shm'
    echo 'mount -t tmpfs run /run; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts'
    echo 'mount -t cgroup2 cgroup /sys/fs/cgroup; ip link set lo up'
    printf 'mount -t ext4 /dev/vda %q\n' "$(dirname "$image")"
    printf 'export PATH=%q HOME=%q XDG_CACHE_HOME=%q\n' "$PATH" "$HOME" "${XDG_CACHE_HOME:-}"
    # libtest colours its results on a terminal.
    printf 'set -o pipefail; cd %q && %s | cat\n' "$PWD" "$(printf '%q ' "$@")"
    echo 'echo "the guest ends with $?"; poweroff -f'
} >"$work/script"

/usr/lib/qemu/virtiofsd --socket-path="$work/files" -o source=/ -o cache=auto -o sandbox=chroot >"$work/virtiofsd.log" 2>&1 &
started+=($!)
deadline=$((SECONDS + 60))
until [ -S "$work/files" ]; do
    [ $SECONDS -lt $deadline ] || { cat "$work/virtiofsd.log" >&2; exit 1; }
    sleep 0.1
done
timeout 1h qemu-system-x86_64 -machine accel=tcg,memory-backend=memory -cpu max -smp 2 -m 3G -nodefaults -no-reboot -display none \
    -object memory-backend-memfd,id=memory,size=3G,share=on \
    -kernel "$kernel" -initrd "$work/initrd.img" -append 'console=ttyS0 quiet panic=-1' \
    -chardev "socket,id=files,path=$work/files" -device vhost-user-fs-pci,chardev=files,tag=host \
    -drive "file=$work/cache.raw,format=raw,if=virtio,cache=unsafe" -serial "file:$work/console" </dev/null &
started+=($!)
wait $! || echo "QEMU ended with $?, or was stopped after an hour" >&2
cat "$work/console"
# A filter that matches no test would pass as well.
grep -q '^test result: ok. [1-9]' "$work/console" && grep -q '^the guest ends with 0' "$work/console"
