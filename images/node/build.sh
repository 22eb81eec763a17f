#!/usr/bin/env bash
# Builds the image of a Kubernetes node: Debian with cloud-init, containerd, runc, CNI plugins, kubelet, kubeadm, and the
# container images of a control plane. Nothing but Debian packages and Go modules is fetched. The last line of the output is
# the path of the result, in the user's cache. It is reused until an input changes. Nothing may write to it.
#
#   build.sh rootfs [VERSION]   a folder; for a direct boot it has the links vmlinuz and initrd.img
#   build.sh qcow2 [VERSION]    a disk with this file system and without a boot loader
#
# VERSION: a release of Kubernetes, such as v1.36.3. Without it, the latest one in programs/kubernetes.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

versions=$(ls "$here/programs/kubernetes" | sort -V)
form=${1:-} version=${2:-$(tail -1 <<<"$versions")}
case $form in
    rootfs) result=rootfs ;;
    qcow2) result=disk.qcow2 ;;
    *) sed -n 's/^#   //p' "$0" >&2; exit 2 ;;
esac
grep -qxF "$version" <<<"$versions" ||
    { echo "There is no image of Kubernetes $version: choose one of" $versions >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "The node image needs root: its files have owners." >&2; exit 1; }

sources=$(cd "$here/../.." && find images/node tests/podnet -type f | LC_ALL=C sort | xargs sha256sum)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/node-image/$(sha256sum <<<"$sources" | cut -c1-12)/$version
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
touch "$folder/.lock"
if [ -e "$folder/$result" ]; then
    echo "$folder/$result"
    exit
fi
if [ "$(stat -f -c %T "$folder")" = overlayfs ]; then
    echo "$folder is on overlayfs, where containerd cannot unpack images: set XDG_CACHE_HOME to a folder on a disk" >&2
    exit 1
fi
# Only the holder of the lock builds here.
rm -rf "$folder"/.building-*
"$here/prepare.sh" >&2 9>&-
work=$(mktemp -d "$folder/.building-XXXXXX")
trap 'rm -rf "$work"' EXIT

# collect_programs FOLDER
collect_programs() {
    local module built
    mkdir "$1"
    for module in "kubernetes/$version" containerd runc containers coredns kube-vip ../../../tests/podnet; do
        built=$("$here/programs.sh" "$module" 9>&-)
        ln -s "$built"/* "$1"
    done
}

# build_rootfs FOLDER
build_rootfs() {
    local root=$1 debian
    debian=$("$here/debian.sh" 9>&-)
    collect_programs "$work/programs"
    echo "making the root file system of a node with Kubernetes $version" >&2
    mkdir -m 0755 "$root"
    tar -C "$root" --xattrs --xattrs-include='*' --numeric-owner -xf "$debian"
    cp -r "$here/files/." "$root"
    mkdir -p "$root/etc/cni/net.d" "$root/etc/kubernetes/kubelet.conf.d"
    install -m 0755 "$work/programs"/{kubelet,kubeadm,kubectl,containerd,containerd-shim-runc-v2,ctr} "$root/usr/local/bin"
    install -m 0755 "$work/programs/runc" "$root/usr/local/sbin"
    chroot "$root" systemctl --quiet enable containerd kubelet
    # A machine is replaced instead of maintained, and nobody may log in.
    chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
        e2scrub_reap.service fstrim.timer getty.target
    "$here/import.sh" "$root" "$work/programs" 9>&-
}

# build_qcow2 DISK
build_qcow2() {
    echo "making a disk with Kubernetes $version" >&2
    truncate -s 6G "$work/disk.raw"
    mke2fs -q -t ext4 -L root -d "$folder/rootfs" "$work/disk.raw"
    qemu-img convert -c -O qcow2 "$work/disk.raw" "$1"
}

# remove_unused: removes images that nobody has asked for in a week and that no machine runs from.
remove_unused() {
    local old
    find "$folder/../.." -mindepth 3 -maxdepth 3 -name .lock -mtime +6 | while read -r old; do
        old=$(realpath "$(dirname "$old")")
        if ! grep -qsF "$old/rootfs" /proc/*/mountinfo; then
            echo "removing the unused image $old" >&2
            flock --nonblock "$old/.lock" rm -rf "$old" 9>&- || continue
            rmdir --ignore-fail-on-non-empty "$(dirname "$old")"
        fi
    done
}

# The disk is made of the root file system.
if [ ! -e "$folder/rootfs" ]; then
    build_rootfs "$work/rootfs"
    mv "$work/rootfs" "$folder"
fi
if [ "$form" = qcow2 ]; then
    build_qcow2 "$work/$result"
    mv "$work/$result" "$folder"
fi
remove_unused
echo "$folder/$result"
