#!/usr/bin/env bash
# Gives each base image of the Dockerfile the digest that its tag has now: NAME:TAG@sha256:…, so that a build takes the same image
# for ever. Dependabot moves tag and digest on from there. Asks registries by `CONTAINER_ENGINE buildx imagetools`.
# With --check: asks none, and fails where an image has no digest.
# Environment: CONTAINER_ENGINE (docker), DOCKERFILE.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${CONTAINER_ENGINE:-docker}
file=${DOCKERFILE:-Dockerfile}

mapfile -t images < <(sed -n 's/^FROM \([^ ]*\).*/\1/p' "$file")
if [ ${#images[@]} = 0 ]; then
  echo "$file has no line FROM" >&2
  exit 1
fi
for image in "${images[@]}"; do
  tagged=${image%@*}
  if [ "${1:-}" = --check ]; then
    if [[ ! $image =~ @sha256:[0-9a-f]{64}$ ]]; then
      echo "$file names $image without a digest: run \`make pin-images\` and commit" >&2
      exit 1
    fi
    continue
  fi
  digest=$("$engine" buildx imagetools inspect "$tagged" --format '{{.Manifest.Digest}}')
  if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
    echo "$engine says that the digest of $tagged is '$digest'" >&2
    exit 1
  fi
  sed -i "s#^FROM $image\( \|\$\)#FROM $tagged@$digest\1#" "$file"
  echo "$tagged@$digest"
done
