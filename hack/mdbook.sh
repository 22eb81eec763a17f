#!/usr/bin/env bash
# Prints the path of mdbook: what is on the PATH, or else what is built once in the user's cache.
set -euo pipefail

if command -v mdbook; then exit; fi
version=0.5.4
cache="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/programs/mdbook-$version"
if [ ! -x "$cache/bin/mdbook" ]; then
  mkdir -p "$cache"
  # Of this run alone: what runs at the same time builds for itself.
  target=$(mktemp -d "$cache/.building.XXXXXX")
  trap 'rm -rf "$target"' EXIT
  # A book is made in a second without optimisation, too, which would take minutes of building.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=debuginfo \
    CARGO_TARGET_DIR="$target" \
    "${CARGO:-cargo}" install --quiet --locked --root "$cache" --no-default-features --features search \
    "mdbook@$version" >&2
fi
echo "$cache/bin/mdbook"
