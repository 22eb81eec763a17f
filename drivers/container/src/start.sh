# Mounts the root file system in a mount namespace of its own, which ends with the machine, and lets conmon create the
# container. Prints the answer of conmon.
#
#   start.sh OPTIONS ROOT CONMON [ARGUMENT…]
options=$1 root=$2
shift 2
mount -t overlay overlay -o "$options" "$root"
_OCI_SYNCPIPE=3 "$@" 3>&1 </dev/null >/dev/null 2>&1 | head -n 1
