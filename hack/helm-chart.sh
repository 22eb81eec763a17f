#!/usr/bin/env bash
# Writes a Helm chart, generated from config/helm, into the folder $1.
# Environment: VERSION, IMG, KUBECTL; `make release` sets them.
set -euo pipefail
cd "$(dirname "$0")/.."
chart=$1
mkdir -p "$chart/templates"

cat > "$chart/Chart.yaml" <<CHART
apiVersion: v2
name: cluster-api-provider-cmi
description: Cluster API infrastructure provider for any VM back end with a Common Machine Interface driver
type: application
version: ${VERSION#v}
appVersion: $VERSION
kubeVersion: ">=1.30.0-0"
home: https://github.com/capcmi/cluster-api-provider-cmi
sources: [https://github.com/capcmi/cluster-api-provider-cmi]
CHART

cat > "$chart/values.yaml" <<VALUES
# The provider's image.
image: $IMG
# Two, where the driver keeps its VMs outside of the provider's process: see the documentation on replicas.
replicas: 1
# The drivers file. A change restarts the provider.
drivers:
- name: simulated
  simulated: {}
# Further flags of \`capcmi run\`.
args: []
VALUES

cat > "$chart/values.schema.json" <<'SCHEMA'
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["image", "replicas", "drivers", "args"],
  "properties": {
    "global": {"type": "object"},
    "image": {"type": "string", "minLength": 1},
    "replicas": {"type": "integer", "minimum": 0},
    "drivers": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["name"]}},
    "args": {"type": "array", "items": {"type": "string", "pattern": "^--"}}
  }
}
SCHEMA

rendered=$("$KUBECTL" kustomize config/helm)
if [[ $rendered == *'{{'* ]]; then
  echo "config/helm has braces that Helm would take for a template" >&2
  exit 1
fi
sed -e 's|namespace: capcmi-system|namespace: {{ .Release.Namespace }}|' \
  -e 's|^  replicas: 1$|  replicas: {{ .Values.replicas }}|' \
  -e 's|image: HELM_IMAGE|image: {{ .Values.image \| quote }}|' \
  -e 's|^\( *\)- HELM_ARGS$|        {{- range .Values.args }}\n\1- {{ . \| quote }}\n        {{- end }}|' \
  -e 's|HELM_DRIVERS_CHECKSUM|{{ toYaml .Values.drivers \| sha256sum }}|' \
  -e 's|^  drivers.yaml: HELM_DRIVERS$|  drivers.yaml: \|\n    drivers:\n    {{- toYaml .Values.drivers \| nindent 4 }}|' \
  <<< "$rendered" > "$chart/templates/provider.yaml"
for value in image replicas drivers args; do
  if ! grep -q "\.Values\.$value\b" "$chart/templates/provider.yaml"; then
    echo "config/helm has no place for the value $value" >&2
    exit 1
  fi
done
if grep -q -e HELM_ -e 'capcmi-system$' "$chart/templates/provider.yaml"; then
  echo "config/helm has marks that hack/helm-chart.sh does not know:" >&2
  grep -e HELM_ -e 'capcmi-system$' "$chart/templates/provider.yaml" >&2
  exit 1
fi
