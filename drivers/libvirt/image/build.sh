#!/usr/bin/env bash
# Builds an image of a Kubernetes node: Debian with cloud-init, containerd, runc, CNI plugins, the kubelet, and two images
# of containers. Prints the folder that has it, in the user's cache: node.qcow2, its kernel and its initrd, which a host
# starts it with since it has no boot loader. Nothing but Debian packages and Go modules is fetched.
#
# It needs root, and what prepare.sh installs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

cache=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/libvirt-node-image
folder=$cache/$(cd "$here" && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-12)
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder/made" ] || { echo "$folder"; exit 0; }
programs=$("$here/programs.sh" 9>&-)
debian=$("$here/debian.sh" 9>&-)
work=$(mktemp -d "$cache/.building-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "building the node image" >&2

root=$work/root
mkdir "$root" "$work/made"
tar -C "$root" --xattrs --xattrs-include='*' --numeric-owner -xf "$debian"
cp -r "$here/files/." "$root"
install -m 0755 "$programs"/{kubelet,containerd,containerd-shim-runc-v2,ctr} "$root/usr/local/bin"
install -m 0755 "$programs/runc" "$root/usr/local/sbin"
mkdir "$root/usr/local/share/container-images"
for program in pause hello; do
    "$here/oci.sh" "capcmi.local/$program:1" "$programs/$program" "$root/usr/local/share/container-images/$program.tar"
done
chroot "$root" systemctl --quiet enable containerd container-images
# A machine is replaced, and not maintained.
chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer

cp -L "$root/vmlinuz" "$root/initrd.img" "$work/made"
truncate -s 3G "$work/node.raw"
mke2fs -q -t ext4 -L root -d "$root" "$work/node.raw"
qemu-img convert -c -O qcow2 "$work/node.raw" "$work/made/node.qcow2"
touch "$work/made/made"
rm -rf "$folder"
mv "$work/made" "$folder"
echo "$folder"
