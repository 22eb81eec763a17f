#!/usr/bin/env bash
# Writes a clusterctl repository: RELEASE_DIR/infrastructure-capcmi-cmi/VERSION and, unless one exists, a configuration that
# points at it.
# Environment: VERSION, IMG, RELEASE_DIR, KUBECTL, SBOM, BUILDER; `make release` sets them.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

if [[ ! $VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
  echo "VERSION is '$VERSION'; clusterctl wants a version like v0.1.0" >&2
  exit 1
fi
if [[ ! $IMG =~ ^[A-Za-z0-9._:/@-]+$ ]]; then
  echo "IMG is '$IMG', which is no name of an image" >&2
  exit 1
fi

# clusterctl refuses a release whose series is not in the metadata, but only when the release
# is installed.
IFS=. read -r major minor _ <<< "${VERSION#v}"
if ! grep -A1 -Fx -e "- major: $major" metadata.yaml | grep -qFx "  minor: $minor"; then
  echo "VERSION is '$VERSION', and metadata.yaml has no release series $major.$minor: add it there, with its contract" >&2
  exit 1
fi

provider=infrastructure-capcmi-cmi
mkdir -p "$RELEASE_DIR/$provider"
repository=$(cd "$RELEASE_DIR/$provider" && pwd)

# clusterctl takes a folder with the name of a version for a release: it gets that name when everything is in it.
unfinished=$(mktemp -d "$repository/.unfinished.XXXXXX")
trap 'rm -rf "$unfinished"' EXIT

# Writes the components of a kustomization to a file.
components() {
  "$KUBECTL" kustomize "$1" |
    sed "s|image: ghcr.io/capcmi/cluster-api-provider-cmi:.*|image: $IMG|" > "$unfinished/$2"
  if ! grep -qF "image: $IMG" "$unfinished/$2"; then
    echo "config/manager/deployment.yaml does not name the image that $IMG takes the place of" >&2
    exit 1
  fi
}

components config/clusterctl infrastructure-components.yaml
components config/clusterctl-two-replicas infrastructure-components-two-replicas.yaml
cp metadata.yaml templates/*.yaml "$unfinished/"

# For the Cluster API operator, which reads components and metadata out of a ConfigMap.
cat > "$unfinished/cluster-api-operator.yaml" <<OPERATOR
apiVersion: v1
kind: Namespace
metadata:
  name: capcmi-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: $VERSION
  namespace: capcmi-system
  labels:
    provider.cluster.x-k8s.io/name: ${provider#infrastructure-}
    provider.cluster.x-k8s.io/type: infrastructure
    provider.cluster.x-k8s.io/version: $VERSION
data:
  metadata: |
$(sed 's/^/    /' metadata.yaml)
  components: |
$(sed 's/^/    /' "$unfinished/infrastructure-components.yaml")
---
apiVersion: operator.cluster.x-k8s.io/v1alpha2
kind: InfrastructureProvider
metadata:
  name: ${provider#infrastructure-}
  namespace: capcmi-system
spec:
  version: $VERSION
  fetchConfig:
    selector:
      # The operator takes only one ConfigMap, and the previous version's stays.
      matchLabels:
        provider.cluster.x-k8s.io/name: ${provider#infrastructure-}
        provider.cluster.x-k8s.io/type: infrastructure
        provider.cluster.x-k8s.io/version: $VERSION
OPERATOR

# The same for its `fetchConfig.oci`: an OCI layout as an archive, which `oras cp --from-oci-layout` puts into a registry.
package=$unfinished/package
mkdir -p "$package/blobs/sha256"
# Puts a file into the layout and prints its digest and size as JSON.
blob() {
  local digest size
  digest=$(sha256sum < "$1" | cut -d ' ' -f 1)
  size=$(wc -c < "$1")
  cp "$1" "$package/blobs/sha256/$digest"
  printf '"digest":"sha256:%s","size":%s' "$digest" "$size"
}
layer() {
  local blob
  blob=$(blob "$1")
  printf '{"mediaType":"application/yaml",%s,"annotations":{"org.opencontainers.image.title":"%s"}}' "$blob" "$2"
}
printf '{}' > "$package/config"
# Not as arguments: the shell ignores failures there.
config=$(blob "$package/config")
metadata=$(layer metadata.yaml metadata.yaml)
components=$(layer "$unfinished/infrastructure-components.yaml" components.yaml)
printf '{"schemaVersion":2,"mediaType":"%s","artifactType":"%s","config":{"mediaType":"%s",%s},"layers":[%s,%s]}' \
  application/vnd.oci.image.manifest.v1+json application/vnd.capcmi.provider \
  application/vnd.oci.empty.v1+json "$config" "$metadata" "$components" > "$package/manifest"
manifest=$(blob "$package/manifest")
printf '{"schemaVersion":2,"mediaType":"%s","manifests":[{"mediaType":"%s",%s,"annotations":{"%s":"%s"}}]}' \
  application/vnd.oci.image.index.v1+json application/vnd.oci.image.manifest.v1+json "$manifest" \
  org.opencontainers.image.ref.name "$VERSION" > "$package/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' > "$package/oci-layout"
rm "$package/config" "$package/manifest"
tar --create --file "$unfinished/cluster-api-operator-package.tar" --directory "$package" \
  --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX --mtime=@0 blobs index.json oci-layout
rm -r "$package"

# A package of Helm's is an archive of the chart's folder. The same sources give the same archive.
VERSION=$VERSION IMG=$IMG KUBECTL=$KUBECTL hack/helm-chart.sh "$unfinished/chart/cluster-api-provider-cmi"
tar --create --gzip --file "$unfinished/cluster-api-provider-cmi-${VERSION#v}.tgz" --directory "$unfinished/chart" \
  --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 cluster-api-provider-cmi
rm -r "$unfinished/chart"

# The crates in the binary. The tool writes a file beside each manifest of the workspace, by the name that it is given.
if [ "$SBOM" = yes ]; then
  tool=$(hack/cargo-program.sh cargo-cyclonedx 0.5.9)
  list=.release-sbom-$$
  trap 'rm -rf "$unfinished"; find . -name "$list.json" -not -path "./target/*" -delete' EXIT
  "$tool/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --target x86_64-unknown-linux-gnu \
    --override-filename "$list"
  # No folder of the computer that it was made on.
  sed "s|file://$PWD|file://.|g" "$list.json" > "$unfinished/sbom.cdx.json"
fi

# The sources of the files, as a statement of in-toto with the provenance of SLSA. It is not signed: in the workflow of a
# release GitHub signs another one.
subjects=$(cd "$unfinished" && sha256sum -- * | sed 's/^\([0-9a-f]*\)  \(.*\)$/{"name":"\2","digest":{"sha256":"\1"}}/' | paste -sd ,)
commit=
changed=false
# Not of a repository that these sources were only unpacked in.
if [ "$(git rev-parse --show-toplevel 2> /dev/null)" = "$(pwd -P)" ]; then
  commit=$(git rev-parse --verify --quiet HEAD || true)
fi
# What git does not know of is released as well where it is of these folders.
if [ -n "$commit" ] && {
  ! git diff --quiet HEAD || [ -n "$(git status --porcelain -- config hack templates metadata.yaml)" ]
}; then
  changed=true
fi
source=
if [ -n "$commit" ]; then
  source=$(printf '{"uri":"git+https://github.com/capcmi/cluster-api-provider-cmi","digest":{"gitCommit":"%s"}}' "$commit")
fi
printf '{"_type":"%s","subject":[%s],"predicateType":"%s","predicate":{"buildDefinition":{"buildType":"%s",%s,%s},%s}}\n' \
  https://in-toto.io/Statement/v1 "$subjects" https://slsa.dev/provenance/v1 \
  https://github.com/capcmi/cluster-api-provider-cmi/blob/main/hack/release.sh \
  "$(printf '"externalParameters":{"version":"%s","image":"%s","sourceChanged":%s}' "$VERSION" "$IMG" "$changed")" \
  "\"resolvedDependencies\":[$source]" "\"runDetails\":{\"builder\":{\"id\":\"${BUILDER:-local}\"}}" \
  > "$unfinished/provenance.intoto.json"

(cd "$unfinished" && sha256sum -- * > checksums.txt)
chmod 644 "$unfinished"/*
target="$repository/$VERSION"
rm -rf "$target"
mv "$unfinished" "$target"
chmod 755 "$target"
echo "wrote $target"

# People keep variables of theirs in the configuration: it is written once. Its URL has no version, so that it fits every one.
config="$RELEASE_DIR/clusterctl-config.yaml"
url="file://$repository/latest/infrastructure-components"
if [ -e "$config" ]; then
  grep -qF "$url" "$config" ||
    echo "kept $config, which has no provider with the url $url.yaml: add it, or clusterctl does not find this release" >&2
else
  cat > "$config" <<CONFIG
# clusterctl --config $config init --infrastructure ${provider#infrastructure-}
# \`make release\` leaves this file as it is: it is the place for the variables of the provider.
providers:
- name: ${provider#infrastructure-}
  type: InfrastructureProvider
  url: $url.yaml
CONFIG
  echo "wrote $config"
fi
