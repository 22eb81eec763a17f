# Runs "$@" and ends it when standard input closes, which it does however the process at its other end comes
# to end. A line on standard input is the name of a signal to send.
exec 3<&0 </dev/null
"$@" 3<&- &
program=$!
(
    while read -r signal <&3; do kill -s "$signal" "$program"; done
    kill -s KILL "$program"
) 2>/dev/null &
watch=$!
exec 3<&-
wait "$program"
status=$?
kill -s KILL "$watch" 2>/dev/null
exit "$status"
