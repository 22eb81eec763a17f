#!/usr/bin/env bash
# Fails when a build of the libvirt driver alone would build dependencies of the workspace a second time: cargo enables the
# features that the selected packages ask for.
set -euo pipefail
cd "$(dirname "$0")/.."

# Packages with their features. Packages of the workspace come with a folder.
tree() {
  "${CARGO:-cargo}" tree --locked --edges normal,dev --prefix none --no-dedupe --format '{p} [{f}]' "$@" |
    sed 's/ (proc-macro)//' | grep -v ' (/' | LC_ALL=C sort -u
}
workspace=$(tree --workspace --exclude capcmi-driver-libvirt)
twice=$(LC_ALL=C comm -13 <(echo "$workspace") <(tree --package capcmi-driver-libvirt) |
  while read -r name version features; do
    if other=$(grep -F "$name $version " <<< "$workspace"); then
      printf '  %s\n    the driver has     %s\n    the workspace has  %s\n' \
        "$name" "$features" "$(cut -d ' ' -f 3- <<< "$other" | paste -s -d ' ')"
    fi
  done)
if [ -n "$twice" ]; then
  printf 'cargo builds these packages twice, because the libvirt driver has other features:\n%s\n' "$twice" >&2
  echo 'Enable the features in the dev-dependencies of the package in Cargo.toml, or in the dependencies of the workspace.' >&2
  exit 1
fi
