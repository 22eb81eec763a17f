#!/bin/sh
# Wraps `timeout`, which starts each program of the driver. The files `kill-before` and `kill-after` in the folder
# `faults` hold a number: the driver is killed at the program with this number, from now on.
set -u
lab=$(dirname "$0")/..
for moment in before after; do
    armed=$lab/faults/kill-$moment
    [ -e "$armed" ] || continue
    left=$(($(cat "$armed") - 1))
    if [ $left -gt 0 ]; then
        echo $left >"$armed"
        continue
    fi
    rm "$armed"
    if [ $moment = after ]; then /usr/bin/timeout "$@"; fi
    kill -KILL "$(cat "$lab/driver.pid")"
    exit 1
done
exec /usr/bin/timeout "$@"
