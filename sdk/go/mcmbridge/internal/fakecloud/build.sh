#!/bin/sh
# Builds MCM's fake driver behind the bridge for tests, unless that was done before. Prints the folder that has the program
# `driver`. It is outside of the repository, so that a fresh clone finds it again. Environment: XDG_CACHE_HOME, where
# the folder is kept. Needs Go.
set -eu
cd "$(dirname "$0")/../.."

go version >/dev/null || { echo "the bridge needs Go: https://go.dev/dl" >&2; exit 1; }

# Another Go or source makes another driver.
inputs() {
    go version
    cat go.mod go.sum internal/fakecloud/build.sh ../go.mod ../go.sum
    find . ../cmi ../gen ../internal -name '*.go' ! -name '*_test.go' | LC_ALL=C sort | xargs cat
}
cache="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi"
folder="$cache/mcm-driver-$(inputs | sha256sum | cut -c1-16)"

mkdir -p "$cache"
# Several tests may ask at the same time.
exec 9>"$folder.lock"
flock 9
if [ ! -x "$folder/driver" ]; then
    echo "building MCM's fake driver: $folder (once, about a minute)" >&2
    mkdir -p "$folder"
    CGO_ENABLED=0 go build -o "$folder/unfinished" ./internal/fakecloud/cmd >&2
    mv "$folder/unfinished" "$folder/driver"
fi
echo "$folder"
