#!/bin/sh
# Starts a driver, judges it with the conformance suite, and ends it, as in a CI job:
#
#   conformance.sh suite.yaml COMMAND [ARGUMENT…]
#
# The exit code is that of `capcmi conformance`. conformance.xml has the cases as JUnit XML, driver.log the driver's
# output, and driver.pid its process, for the hook `restart: [sh, restart.sh, driver.pid, driver.log, …]`.
# Environment: CAPCMI, the program (default: capcmi); CMI_ENDPOINT, where the driver is to listen; REQUIRE, what
# exit code 0 takes: cmi.v1, basic (the default) or full.
set -eu

[ $# -ge 2 ] || { echo "usage: conformance.sh suite.yaml COMMAND [ARGUMENT…]" >&2; exit 2; }
config=$1
shift
capcmi="${CAPCMI:-capcmi}"
export CMI_ENDPOINT="${CMI_ENDPOINT:-tcp://127.0.0.1:27051}"

# In a separate session: Ctrl-C is for the suite, which needs the driver to remove its VMs.
if command -v setsid >/dev/null; then setsid "$@" >driver.log 2>&1 & else "$@" >driver.log 2>&1 & fi
driver=$!
# Where the hook `restart` looks for the process, and leaves the next one's id; see restart.sh.
echo "$driver" >driver.pid
trap 'kill "$(cat driver.pid)" 2>/dev/null || true; wait "$driver" || true; rm -f driver.pid' EXIT

tries=0
until "$capcmi" driver info --endpoint "$CMI_ENDPOINT" >/dev/null 2>&1; do
    kill -0 "$driver" 2>/dev/null || { cat driver.log >&2; echo "the driver has ended" >&2; exit 1; }
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { cat driver.log >&2; echo "nothing answers at $CMI_ENDPOINT" >&2; exit 1; }
    sleep 1
done
"$capcmi" conformance --endpoint "$CMI_ENDPOINT" --config "$config" --junit conformance.xml \
    --require "${REQUIRE:-basic}"
