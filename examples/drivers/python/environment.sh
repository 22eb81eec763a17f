#!/bin/sh
# Makes the virtual environment of the Python drivers and their kit, sdk/python, unless it is there already. Prints its
# folder. It is outside of the repository, so that a fresh clone finds it again. The kit is not in it: put
# sdk/python/src on PYTHONPATH.
# Environment: PYTHON, the interpreter that it is made from; XDG_CACHE_HOME, where it is kept.
set -eu
cd "$(dirname "$0")"

PYTHON="${PYTHON:-python3}"
"$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "the Python drivers need Python 3.11 or later with venv; PYTHON is $PYTHON" >&2
    exit 1
}

# Another interpreter or package makes another environment.
inputs() {
    "$PYTHON" -VV
    cat environment.sh constraints.txt requirements-dev.txt ./*/requirements.txt
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
    touch "$folder/complete"
fi
echo "$folder"
