#!/usr/bin/env bash
# Fuzzes each parser of data from the wire for a while. Needs a C++ compiler, and only stable features:
# these are the flags of cargo-fuzz without a sanitizer, since there is no unsafe code of ours to watch.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds="${FUZZ_SECONDS:-20}"
host="$(rustc -vV | sed -n 's/^host: //p')"
# With --target, the flags are not for build scripts, which are not linked with libFuzzer.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/fuzz"
# The versions of the release, and no second list of them to look after.
cp Cargo.lock fuzz/Cargo.lock
"${CARGO:-cargo}" build --quiet --manifest-path fuzz/Cargo.toml --target "$host"

found="$(mktemp -d)"
trap 'rm -rf "$found"' EXIT
for target in convert trailers; do
  mkdir "$found/$target"
  if ! "$CARGO_TARGET_DIR/$host/debug/$target" -max_total_time="$seconds" -artifact_prefix="$found/$target-" \
    -print_final_stats=1 "$found/$target" fuzz/seeds/"$target" 2>"$found/log"; then
    tail -n 40 "$found/log" >&2
    mkdir -p fuzz/artifacts && cp "$found"/"$target"-* fuzz/artifacts/
    echo "the input is kept in fuzz/artifacts" >&2
    exit 1
  fi
  sed -n 's/^stat::number_of_executed_units: */'"$target"': inputs tried: /p' "$found/log"
done
