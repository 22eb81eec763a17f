#!/usr/bin/env bash
# Writes a container image as an OCI archive for `ctr images import`.
#
#   oci.sh NAME CONFIG ROOT ARCHIVE   NAME: registry/name:tag; CONFIG: the field `config` of the image's configuration, as JSON;
#                                     ROOT: the folder with the image's files, which root owns in the image
set -euo pipefail
umask 022
name=$1 config=$2 root=$3 archive=$(realpath -m "$4")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
blobs=$work/layout/blobs/sha256
mkdir -p "$blobs"

# blob FILE: moves it among the blobs, and prints its descriptor without the media type.
blob() {
    local digest size
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    size=$(stat -c %s "$1")
    mv "$1" "$blobs/$digest"
    printf '"digest": "sha256:%s", "size": %s' "$digest" "$size"
}

# The same bytes each time.
reproducible=(--sort=name --owner=0 --group=0 --numeric-owner --mtime=@0)
# Other users must find the program.
chmod 0755 "$root"
tar -C "$root" "${reproducible[@]}" -cf "$work/layer" .
diff=$(sha256sum "$work/layer" | cut -d' ' -f1)
layer=$(blob "$work/layer")
architecture=$(dpkg --print-architecture)
cat >"$work/config" <<END
{"architecture": "$architecture", "os": "linux", "config": $config,
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff"]}}
END
config=$(blob "$work/config")
cat >"$work/manifest" <<END
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
 "config": {"mediaType": "application/vnd.oci.image.config.v1+json", $config},
 "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", $layer}]}
END
manifest=$(blob "$work/manifest")
echo '{"imageLayoutVersion": "1.0.0"}' >"$work/layout/oci-layout"
cat >"$work/layout/index.json" <<END
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [
  {"mediaType": "application/vnd.oci.image.manifest.v1+json", $manifest,
   "annotations": {"io.containerd.image.name": "$name", "org.opencontainers.image.ref.name": "${name##*:}"}}]}
END
tar -C "$work/layout" "${reproducible[@]}" -cf "$archive" .
