#!/bin/sh
# Ends a driver without warning, as a crash does, and starts it again: the hook `restart` of the conformance
# suite. Where no driver runs yet, it is only started.
#
#   restart.sh PIDFILE LOG COMMAND [ARGUMENT…]
#
# PIDFILE holds the id of the driver's process, and LOG its output. The driver gets the environment of
# the suite, CMI_ENDPOINT included; the suite itself waits until it serves.
set -eu

[ $# -ge 3 ] || { echo "usage: restart.sh PIDFILE LOG COMMAND [ARGUMENT…]" >&2; exit 2; }
pid_file=$1
log=$2
shift 2

if [ -s "$pid_file" ]; then
    pid=$(cat "$pid_file")
    kill -KILL "$pid" 2>/dev/null || true
    # Only once it is gone, its endpoint is free. Init may be slow to reap the process: it counts as gone, unless
    # one of its threads has not ended yet (`l`), which holds the endpoint.
    while state=$(ps -o stat= -p "$pid"); do
        case $state in
        *l*) ;;
        Z*) break ;;
        esac
        sleep 0.05
    done
fi
# The hook ends when no process holds its output open.
"$@" </dev/null >>"$log" 2>&1 &
echo $! >"$pid_file"
