# Removes the folder $1 once standard input has closed and every supervisor named in its `supervisors` has
# ended. A folder marked with the file `keep` keeps its logs.
exec 3<&0 </dev/null
while read -r _ <&3; do :; done
for entry in "$1"/supervisors/*; do
    tries=0
    # Bounded, because a supervisor whose parent is gone stays a zombie where nothing reaps it.
    while kill -0 "${entry##*/}" 2>/dev/null && [ "$tries" -lt 100 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
done
if [ -e "$1/keep" ]; then
    rm -rf "$1/etcd" "$1/supervisors"
else
    rm -rf "$1"
fi
