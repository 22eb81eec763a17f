#!/usr/bin/env bash
# Builds archives of the command `capcmi`: ARCHIVE_DIR/capcmi-VERSION-OS-ARCH.tar.gz with `capcmi` and, for kubectl,
# `kubectl-capcmi`. It fails at the first archive that cannot be built on this computer.
#
# linux: a static program, on any computer with cargo-zigbuild. Zig compiles and links C (`pip install cargo-zigbuild`).
# darwin: only on a Mac, because the program links with frameworks of Apple's SDK.
# Built so far: both for linux, of which linux-amd64 was run. Not built yet: those for darwin.
# Environment: VERSION, ARCHIVE_DIR, ARCHIVES, CARGO; `make archives` sets them.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "archives: $*" >&2
  exit 1
}

mkdir -p "$ARCHIVE_DIR"
for archive in $ARCHIVES; do
  case $archive in
    linux-amd64) target=x86_64-unknown-linux-musl ;;
    linux-arm64) target=aarch64-unknown-linux-musl ;;
    darwin-amd64) target=x86_64-apple-darwin ;;
    darwin-arm64) target=aarch64-apple-darwin ;;
    *) fail "there is no archive '$archive': use linux-amd64, linux-arm64, darwin-amd64 or darwin-arm64" ;;
  esac
  build=zigbuild
  if [[ $archive == darwin-* ]]; then
    [ "$(uname)" = Darwin ] || fail "$archive can only be built on a Mac"
    build=build
  elif ! command -v cargo-zigbuild > /dev/null; then
    fail "$archive needs cargo-zigbuild: pip install cargo-zigbuild"
  fi
  rustup --quiet target add "$target" || fail "$archive needs Rust's standard library for $target"
  "${CARGO:-cargo}" "$build" --release --locked --package capcmi-cli --bin capcmi --target "$target"
  content=$(mktemp -d)
  cp "${CARGO_TARGET_DIR:-target}/$target/release/capcmi" LICENSE "$content/"
  ln "$content/capcmi" "$content/kubectl-capcmi"
  tar -czf "$ARCHIVE_DIR/capcmi-${VERSION}-$archive.tar.gz" -C "$content" capcmi kubectl-capcmi LICENSE
  rm -r "$content"
  echo "wrote $ARCHIVE_DIR/capcmi-${VERSION}-$archive.tar.gz"
done
