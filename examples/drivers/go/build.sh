#!/bin/sh
# Builds the driver for tests, unless that was done before. Prints the folder that has the program `driver`. It is outside
# of the repository, so that a fresh clone finds it again. The build has the kit's fault layer: the conformance suite
# causes faults through the folder in CAPCMI_FAULTS. Environment: XDG_CACHE_HOME, where the folder is kept. Needs Go.
set -eu
cd "$(dirname "$0")"
kit=../../../sdk/go

go version >/dev/null || { echo "the driver in Go needs Go: https://go.dev/dl" >&2; exit 1; }

# Another Go or source makes another driver.
inputs() {
    go version
    cat build.sh go.mod go.sum ./*.go "$kit/go.mod" "$kit/go.sum"
    find "$kit/cmi" "$kit/gen" "$kit/internal" -name '*.go' ! -name '*_test.go' | LC_ALL=C sort | xargs cat
}
cache="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi"
folder="$cache/go-driver-$(inputs | sha256sum | cut -c1-16)"

mkdir -p "$cache"
# Several tests may ask at the same time.
exec 9>"$folder.lock"
flock 9
if [ ! -x "$folder/driver" ]; then
    echo "building the driver in Go: $folder (once, about a minute)" >&2
    mkdir -p "$folder"
    CGO_ENABLED=0 go build -tags cmifaults -o "$folder/unfinished" . >&2
    mv "$folder/unfinished" "$folder/driver"
fi
echo "$folder"
