#!/bin/sh
# Generates gen/ from proto/. With the argument `check`, it changes nothing and fails when gen/ is out of date.
# Environment: PROTOC, the compiler of protocol buffers (default: protoc, or else that of the Python drivers). Needs Go.
set -eu
cd "$(dirname "$0")"
protos=../../proto

if [ -z "${PROTOC:-}" ] && ! command -v protoc >/dev/null; then
    python="$(../../examples/drivers/python/environment.sh)/bin/python"
    protoc() { "$python" -m grpc_tools.protoc "$@"; }
else
    protoc() { command "${PROTOC:-protoc}" "$@"; }
fi

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
# The plugins of protoc in the versions of go.mod.
go build -o "$new/bin/" tool
module=$(go list -m)
packages="Mcmi/v1/cmi.proto=$module/gen/cmi/v1;cmiv1,Mcapcmi/v1/capcmi.proto=$module/gen/capcmi/v1;capcmiv1"
PATH="$new/bin:$PATH" protoc -I "$protos" \
    --go_out="module=$module,$packages:$new" --go-grpc_out="module=$module,$packages:$new" \
    cmi/v1/cmi.proto capcmi/v1/capcmi.proto
# Any version of protoc makes the same code.
find "$new/gen" -name '*.go' -exec sed -i '/^\/\/ [\t-].*protoc /d' {} +

if [ "${1:-}" = check ]; then
    diff -r gen "$new/gen" || { echo 'sdk/go/gen is out of date: run sdk/go/generate.sh' >&2; exit 1; }
else
    rm -rf gen
    mv "$new/gen" gen
fi
