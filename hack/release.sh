#!/usr/bin/env bash
# Writes a clusterctl repository: RELEASE_DIR/infrastructure-cmi/VERSION and a configuration that points at it.
# Environment: VERSION, IMG, RELEASE_DIR, KUBECTL; `make release` sets them.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ! $VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
  echo "VERSION is '$VERSION'; clusterctl wants a version like v0.1.0" >&2
  exit 1
fi
if [[ ! $IMG =~ ^[A-Za-z0-9._:/@-]+$ ]]; then
  echo "IMG is '$IMG', which is no name of an image" >&2
  exit 1
fi

target="$RELEASE_DIR/infrastructure-cmi/$VERSION"
mkdir -p "$target"
target=$(cd "$target" && pwd)

"$KUBECTL" kustomize config/clusterctl |
  sed "s|image: ghcr.io/capcmi/cluster-api-provider-cmi:.*|image: $IMG|" > "$target/infrastructure-components.yaml"
grep -qF "image: $IMG" "$target/infrastructure-components.yaml"
cp metadata.yaml templates/*.yaml "$target/"

cat > "$RELEASE_DIR/clusterctl-config.yaml" <<CONFIG
# clusterctl --config $RELEASE_DIR/clusterctl-config.yaml init --infrastructure cmi:$VERSION
providers:
- name: cmi
  type: InfrastructureProvider
  url: file://$target/infrastructure-components.yaml
CONFIG
echo "wrote $target"
