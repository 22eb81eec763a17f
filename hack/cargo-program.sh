#!/usr/bin/env bash
# Prints the folder of a program from crates.io: where it is on the PATH, or else where it is built, once, in the user's cache.
#
#   cargo-program.sh NAME VERSION [FLAG of cargo install]...
set -euo pipefail

name=$1 version=$2
if program=$(command -v "$name"); then
  dirname "$program"
  exit
fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/programs/$name-$version"
if [ ! -x "$cache/bin/$name" ]; then
  mkdir -p "$cache"
  # Of this run alone: what runs at the same time builds for itself.
  target=$(mktemp -d "$cache/.building.XXXXXX")
  trap 'rm -rf "$target"' EXIT
  # These programs do their work in a second without optimisation, too, which would take minutes of building.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=debuginfo \
    CARGO_TARGET_DIR="$target" \
    "${CARGO:-cargo}" install --quiet --locked --root "$cache" "${@:3}" "$name@$version" >&2
fi
echo "$cache/bin"
