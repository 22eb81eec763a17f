#!/bin/sh
# Makes the virtual environment of the Python drivers, with the code that is generated from proto/ in it,
# unless it is there already. Prints its folder. It is outside of the repository, so that a fresh clone finds
# it again.
# Environment: PYTHON, the interpreter that it is made from; XDG_CACHE_HOME, where it is kept.
set -eu
cd "$(dirname "$0")"
protos=../../../proto

PYTHON="${PYTHON:-python3}"
"$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "the Python drivers need Python 3.11 or later with venv; PYTHON is $PYTHON" >&2
    exit 1
}

# Another interpreter, package or proto makes another environment.
inputs() {
    "$PYTHON" -VV
    cat environment.sh constraints.txt requirements-dev.txt ./*/requirements.txt
    find "$protos" -name '*.proto' | LC_ALL=C sort | xargs cat
}
folder="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/python-$(inputs | sha256sum | cut -c1-16)"

mkdir -p "$(dirname "$folder")"
# Several tests may ask at the same time.
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/complete" ]; then
    echo "making the environment of the Python drivers: $folder (once, about half a minute)" >&2
    rm -rf "$folder"
    "$PYTHON" -m venv "$folder"
    python="$folder/bin/python"
    "$python" -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt -c constraints.txt >&2
    generated="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    "$python" -m grpc_tools.protoc -I "$protos" --python_out="$generated" --grpc_python_out="$generated" \
        cmi/v1/cmi.proto capcmi/v1/capcmi.proto
    touch "$folder/complete"
fi
echo "$folder"
