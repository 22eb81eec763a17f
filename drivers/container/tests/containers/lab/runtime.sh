#!/bin/sh
# runc, with the faults that the files in the folder `faults` ask for.
set -u
faults=$(dirname "$0")/faults
PATH=$PATH:/usr/sbin:/sbin
command=
for word; do
    case $word in state | list | create | start | kill | update | delete) command=$word; break ;; esac
done
[ ! -e "$faults/slow" ] || sleep "$(cat "$faults/slow")"
if [ "$command" = start ] && [ -e "$faults/failing-starts" ]; then
    left=$(($(cat "$faults/failing-starts") - 1))
    if [ $left -gt 0 ]; then echo $left >"$faults/failing-starts"; else rm "$faults/failing-starts"; fi
    echo "the start fails, as a test asked" >&2
    exit 1
fi
if [ -e "$faults/lost-$command" ]; then
    rm "$faults/lost-$command"
    runc "$@"
    echo "the answer is lost, as a test asked" >&2
    exit 1
fi
exec runc "$@"
