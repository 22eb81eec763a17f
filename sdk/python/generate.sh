#!/bin/sh
# Generates src/cmi/v1 and src/capcmi from proto/. With the argument `check`, it changes nothing and fails when they are out
# of date. The generator is that of the Python drivers, whose version constraints.txt pins.
set -eu
cd "$(dirname "$0")"
protos=../../proto
python="$(../../examples/drivers/python/environment.sh)/bin/python"

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
"$python" -m grpc_tools.protoc -I "$protos" --python_out="$new" --pyi_out="$new" --grpc_python_out="$new" \
    cmi/v1/cmi.proto capcmi/v1/capcmi.proto

for package in cmi/v1 capcmi/v1; do
    if [ "${1:-}" = check ]; then
        diff -r -x __pycache__ "src/$package" "$new/$package" ||
            { echo 'the generated code is out of date: run sdk/python/generate.sh' >&2; exit 1; }
    else
        rm -rf "src/$package"
        mkdir -p "$(dirname "src/$package")"
        mv "$new/$package" "src/$package"
    fi
done
