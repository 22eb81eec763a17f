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
# Further flags of \`capcmi-manager\`.
args: []
# Of the provider: enough for 10,000 machines. A limit of CPU would slow down its start.
resources:
  requests: {cpu: 20m, memory: 64Mi}
  limits: {memory: 256Mi}
# Secrets with the credentials of a registry: [{name: registry}].
imagePullSecrets: []
# Labels of the nodes that the provider may run on.
nodeSelector: {}
# A driver in a container beside the provider, where an image is named. It listens at CMI_ENDPOINT, and \`drivers\` above names it
# as {name: plugin, grpc: {endpoint: "unix:///run/capcmi/driver.sock"}}.
driver:
  image: ""
  args: []
  # Further variables, as of a container.
  env: []
  resources:
    requests: {cpu: 20m, memory: 64Mi}
    limits: {memory: 256Mi}
  # Of \`volumes\` below.
  volumeMounts: []
# Volumes of the Pod: Secrets with certificates, credentials and authorities.
volumes: []
# What the provider itself mounts of them, such as its certificate for a driver that it reaches over TLS.
volumeMounts: []
VALUES

cat > "$chart/values.schema.json" <<'SCHEMA'
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["image", "replicas", "drivers", "args", "resources", "imagePullSecrets", "nodeSelector", "driver", "volumes", "volumeMounts"],
  "properties": {
    "global": {"type": "object"},
    "image": {"type": "string", "minLength": 1},
    "replicas": {"type": "integer", "minimum": 0},
    "drivers": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["name"]}},
    "args": {"type": "array", "items": {"type": "string", "pattern": "^--"}},
    "resources": {"type": "object"},
    "imagePullSecrets": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "nodeSelector": {"type": "object", "additionalProperties": {"type": "string"}},
    "driver": {
      "type": "object",
      "additionalProperties": false,
      "required": ["image"],
      "properties": {
        "image": {"type": "string"},
        "args": {"type": "array", "items": {"type": "string"}},
        "env": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "resources": {"type": "object"},
        "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}}
      }
    },
    "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}}
  }
}
SCHEMA

rendered=$("$KUBECTL" kustomize config/helm)
if [[ $rendered == *'{{'* ]]; then
  echo "config/helm has braces that Helm would take for a template" >&2
  exit 1
fi

# A list of Kubernetes objects in the place of a mark that is an element of a list.
list() {
  echo "s|^\( *\)- \(name: \)\{0,1\}$1\$|\1{{- with .Values.$2 }}\n\1{{- toYaml . \| nindent $3 }}\n\1{{- end }}|"
}
# A field in the place of a mark, left out where its value is empty.
field() {
  echo "s|^\( *\)$1: $2\$|\1{{- with .Values.$1 }}\n\1$1:\n\1  {{- toYaml . \| nindent $3 }}\n\1{{- end }}|"
}
sed -e 's|namespace: capcmi-system|namespace: {{ .Release.Namespace }}|' \
  -e 's|^  replicas: 1$|  replicas: {{ .Values.replicas }}|' \
  -e 's|image: HELM_IMAGE|image: {{ .Values.image \| quote }}|' \
  -e 's|image: HELM_DRIVER_IMAGE|image: {{ .Values.driver.image \| quote }}|' \
  -e 's|^\( *\)resources: HELM_DRIVER_RESOURCES$|\1resources:\n\1  {{- toYaml .Values.driver.resources \| nindent 10 }}|' \
  -e 's|^\( *\)resources: HELM_RESOURCES$|\1resources:\n\1  {{- toYaml .Values.resources \| nindent 10 }}|' \
  -e 's|^\( *\)- HELM_ARGS$|        {{- range .Values.args }}\n\1- {{ . \| quote }}\n        {{- end }}|' \
  -e 's|^\( *\)- HELM_DRIVER_ARGS$|        {{- range .Values.driver.args }}\n\1- {{ . \| quote }}\n        {{- end }}|' \
  -e "$(list HELM_DRIVER_ENV driver.env 8)" \
  -e "$(list HELM_DRIVER_VOLUME_MOUNTS driver.volumeMounts 8)" \
  -e "$(list HELM_VOLUME_MOUNTS volumeMounts 8)" \
  -e "$(list HELM_VOLUMES volumes 6)" \
  -e "$(field nodeSelector HELM_NODE_SELECTOR 8)" \
  -e 's|HELM_DRIVERS_CHECKSUM|{{ toYaml .Values.drivers \| sha256sum }}|' \
  -e 's|^  drivers.yaml: HELM_DRIVERS$|  drivers.yaml: \|\n    drivers:\n    {{- toYaml .Values.drivers \| nindent 4 }}|' \
  <<< "$rendered" |
  # The driver's container, the volume of its socket and the mount of that are there where the driver has an image.
  sed -z \
    -e 's|      imagePullSecrets:\n      - name: HELM_IMAGE_PULL_SECRETS\n|      {{- with .Values.imagePullSecrets }}\n      imagePullSecrets:\n        {{- toYaml . \| nindent 6 }}\n      {{- end }}\n|' \
    -e 's|\(        - mountPath: /run/capcmi\n          name: driver-socket\n          readOnly: true\n\)|BEGIN\1END|' \
    -e 's|\(      initContainers:\n\(      [- ][^\n]*\n\)*\)|BEGIN\1END|' \
    -e 's|\(      - emptyDir:\n          medium: Memory\n          sizeLimit: 1Mi\n        name: driver-socket\n\)|BEGIN\1END|' \
    -e 's|BEGIN|      {{- if .Values.driver.image }}\n|g' -e 's|END\( \)|      {{- end }}\n\1|g' > "$chart/templates/provider.yaml"
for value in image replicas drivers args resources imagePullSecrets nodeSelector driver.args driver.env driver.resources driver.volumeMounts volumes volumeMounts; do
  if ! grep -q "\.Values\.$value\b" "$chart/templates/provider.yaml"; then
    echo "config/helm has no place for the value $value" >&2
    exit 1
  fi
done
if [[ $(grep -c 'if .Values.driver.image' "$chart/templates/provider.yaml") != 3 ]]; then
  echo "config/components/driver-sidecar has other parts than hack/helm-chart.sh knows" >&2
  exit 1
fi
if grep -q -e HELM_ -e 'capcmi-system$' "$chart/templates/provider.yaml"; then
  echo "config/helm has marks that hack/helm-chart.sh does not know:" >&2
  grep -e HELM_ -e 'capcmi-system$' "$chart/templates/provider.yaml" >&2
  exit 1
fi
