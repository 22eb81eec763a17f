#!/usr/bin/env bash
# Checks the crates that authors of drivers use, as `cargo publish` would release them: each builds from its package alone,
# every public item is documented, and the version fits the changes since the last release.
#
# Environment: CARGO; SEMVER_BASELINE, a folder or a git revision to compare with in place of the release on crates.io.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
# In the order of publication.
crates=(cmi-driver cmi-grpc)
packages=("${crates[@]/#/--package=}")

"$cargo" publish --dry-run --allow-dirty --locked --all-features "${packages[@]}"
RUSTDOCFLAGS='--deny=warnings' "$cargo" doc --locked --no-deps --all-features "${packages[@]}"

baseline=()
if [ -d "${SEMVER_BASELINE:-}" ]; then
  baseline=("--baseline-root=$SEMVER_BASELINE")
elif [ -n "${SEMVER_BASELINE:-}" ]; then
  baseline=("--baseline-rev=$SEMVER_BASELINE")
else
  for crate in "${crates[@]}"; do
    if ! answer=$("$cargo" info --quiet --registry crates-io "$crate" 2>&1); then
      grep -qF "could not find \`$crate\`" <<< "$answer" || { echo "$answer" >&2; exit 1; }
      echo "$crate is not on crates.io yet: there is no release to compare the public API with."
      exit
    fi
  done
fi
program=$(CARGO=$cargo hack/cargo-program.sh cargo-semver-checks 0.51.0)
"$program/cargo-semver-checks" semver-checks --all-features "${packages[@]}" "${baseline[@]}"
