#!/bin/sh
# Generates the code of proto/ and builds the driver, unless that was done before. Prints the folder that has both, with
# the program `driver`. It is outside of the repository, so that a fresh clone finds it again.
# Environment: PROTOC, the compiler of protocol buffers (default: protoc, or else that of the Python drivers);
# XDG_CACHE_HOME, where the folder is kept. Needs Go.
set -eu
cd "$(dirname "$0")"
protos=../../../proto

go version >/dev/null || { echo "the driver in Go needs Go: https://go.dev/dl" >&2; exit 1; }

# Another Go, source or proto makes another driver.
inputs() {
    go version
    cat build.sh go.mod go.sum ./*.go
    find "$protos" -name '*.proto' | LC_ALL=C sort | xargs cat
}
cache="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi"
folder="$cache/go-driver-$(inputs | sha256sum | cut -c1-16)"

mkdir -p "$cache"
# Several tests may ask at the same time.
exec 9>"$folder.lock"
flock 9
if [ -x "$folder/driver" ]; then
    echo "$folder"
    exit
fi

if [ -z "${PROTOC:-}" ] && ! command -v protoc >/dev/null; then
    python="$(../python/environment.sh)/bin/python"
    protoc() { "$python" -m grpc_tools.protoc "$@"; }
else
    protoc() { command "${PROTOC:-protoc}" "$@"; }
fi

echo "building the driver in Go: $folder (once, about a minute)" >&2
rm -rf "$folder"
mkdir "$folder"
cp go.mod go.sum ./*.go "$folder"

# The plugins of protoc in the versions of go.mod.
go build -o "$folder/bin/" tool
module=$(go list -m)
packages="Mcmi/v1/cmi.proto=$module/gen/cmi/v1;cmiv1,Mcapcmi/v1/capcmi.proto=$module/gen/capcmi/v1;capcmiv1"
PATH="$folder/bin:$PATH" protoc -I "$protos" \
    --go_out="module=$module,$packages:$folder" --go-grpc_out="module=$module,$packages:$folder" \
    cmi/v1/cmi.proto capcmi/v1/capcmi.proto
cd "$folder"
CGO_ENABLED=0 go vet ./... >&2
CGO_ENABLED=0 go build -o unfinished . >&2
mv unfinished driver
echo "$folder"
