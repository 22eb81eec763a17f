#!/usr/bin/env bash
# Writes a clusterctl repository: RELEASE_DIR/infrastructure-cmi/VERSION and a configuration
# that points at it.
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

# clusterctl refuses a release whose series is not in the metadata, and says so only when
# the release is installed.
IFS=. read -r major minor _ <<< "${VERSION#v}"
if ! grep -A1 -Fx -e "- major: $major" metadata.yaml | grep -qFx "  minor: $minor"; then
  echo "VERSION is '$VERSION', and metadata.yaml has no release series $major.$minor: add it there, with its contract" >&2
  exit 1
fi

target="$RELEASE_DIR/infrastructure-cmi/$VERSION"
mkdir -p "$target"
target=$(cd "$target" && pwd)

# Put in place when they are whole: a release that is there can be installed.
components=$(mktemp "$target/.infrastructure-components.XXXXXX")
trap 'rm -f "$components"' EXIT
"$KUBECTL" kustomize config/clusterctl |
  sed "s|image: ghcr.io/capcmi/cluster-api-provider-cmi:.*|image: $IMG|" > "$components"
if ! grep -qF "image: $IMG" "$components"; then
  echo "config/manager/deployment.yaml does not name the image that $IMG takes the place of" >&2
  exit 1
fi
chmod 644 "$components"
mv "$components" "$target/infrastructure-components.yaml"
cp metadata.yaml templates/*.yaml "$target/"

cat > "$RELEASE_DIR/clusterctl-config.yaml" <<CONFIG
# clusterctl --config $RELEASE_DIR/clusterctl-config.yaml init --infrastructure cmi:$VERSION
providers:
- name: cmi
  type: InfrastructureProvider
  url: file://$target/infrastructure-components.yaml
CONFIG
echo "wrote $target"
