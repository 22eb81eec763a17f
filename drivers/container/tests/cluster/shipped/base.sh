#!/usr/bin/env bash
# Makes a stand-in for a distroless base image: the same Debian packages without their scripts, and the user `nonroot`. The
# files come from the root file system of a node image, so nothing is fetched.
#
#   base.sh NODE FOLDER PACKAGE...
set -euo pipefail
umask 022
node=$1 folder=$2
shift 2

mkdir -p "$folder/usr"/{bin,sbin,lib,lib64}
cp -a "$node"/{bin,sbin,lib,lib64} "$folder"
for package; do
    cat "$node/var/lib/dpkg/info/$package.list" 2>/dev/null || cat "$node/var/lib/dpkg/info/$package":*.list
done | while read -r path; do
    # The node image has no manuals. Folders come with their files.
    if [ -L "$node$path" ] || [ -f "$node$path" ]; then echo ".$path"; fi
done | tar -C "$node" --no-recursion -cT - | tar -C "$folder" --keep-directory-symlink -x
mkdir -p "$folder/etc/ssl/certs"
cp "$node/etc/ssl/certs/ca-certificates.crt" "$folder/etc/ssl/certs"
mkdir -m 1777 "$folder/tmp"
mkdir -p "$folder/home/nonroot"
printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin \
    nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin >"$folder/etc/passwd"
printf '%s\n' root:x:0: nobody:x:65534: nonroot:x:65532: >"$folder/etc/group"
