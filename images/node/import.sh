#!/usr/bin/env bash
# Puts the container images of a control plane, and those of tests, into the containerd of a root file system. A machine
# then needs no registry.
#
#   import.sh ROOT PROGRAMS   PROGRAMS: a folder with the programs of all images
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$1 programs=$2
work=$(mktemp -d)
containerd=
end() {
    [ -z "$containerd" ] || { kill "$containerd" && wait "$containerd"; } || true
    rm -rf "$work"
}
trap end EXIT

# required MODULE: the version of a module that the programs are built from
required() { sed -n "s|^[[:space:]]*\(require \)\?$1 v\([^ ]*\).*|\2|p" "$here"/programs/*/go.mod "$here"/programs/*/*/go.mod | sort -u; }

# netfilter FOLDER: copies the programs that kube-proxy calls, their extensions and libraries from the root file system.
netfilter() {
    local called=(usr/sbin/nft usr/sbin/ip{,6}tables{,-save,-restore}) extensions
    mapfile -t extensions < <(cd "$root" && printf '%s\n' usr/lib/*/xtables/*.so)
    mkdir "$1"
    {
        printf '%s\n' "${called[@]}" "${extensions[@]}"
        chroot "$root" ldd "${called[@]/#//}" "${extensions[@]/#//}" | sed -n 's|.*[[:space:]]/\(lib[^ ]*\) (.*|\1|p'
    } | sort -u | chroot "$root" tar -c --dereference -T - | tar -C "$1" -x
}

# image NAME: makes the image of the program that the name ends with. The keys in /etc/kubernetes/pki are root's.
image() {
    local program=${1##*/} user=0 further=
    program=${program%%:*}
    case $program in
        coredns) user=65532 ;;
        pause | hello) user=65534:65534 ;;
        kube-proxy) further=$work/netfilter ;;
    esac
    "$here/oci.sh" "$1" "$user" "$programs/$program" "$work/$program.tar" $further
    ctr images import --local --discard-unpacked-layers "$work/$program.tar" >/dev/null
    rm "$work/$program.tar"
}

# Kubernetes names the images that it wants. The programs must be of these versions.
names=$("$programs/kubeadm" config images list --kubernetes-version "$("$programs/kubeadm" version -o short)")
for wanted in "coredns:v$(required github.com/coredns/coredns)" "etcd:$(required go.etcd.io/etcd/server/v3)-0"; do
    grep -q "/$wanted\$" <<<"$names" || { printf 'kubeadm does not want %s:\n%s\n' "$wanted" "$names" >&2; exit 1; }
done
grep -qF "sandbox = '$(grep /pause: <<<"$names")'" "$root/etc/containerd/config.toml" ||
    { echo "containerd's sandbox image in files/etc/containerd/config.toml is not one of kubeadm: $names" >&2; exit 1; }

# The store has no absolute paths: it also works where the root file system is a machine's.
cat >"$work/config.toml" <<END
version = 3
root = '$root/var/lib/containerd'
state = '$work/state'
disabled_plugins = ['io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', 'io.containerd.grpc.v1.cri', 'io.containerd.nri.v1.nri']
[grpc]
address = '$work/containerd.sock'
END
"$programs/containerd" --config "$work/config.toml" --log-level warn >"$work/log" 2>&1 &
containerd=$!
export CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1
ctr() { "$programs/ctr" --address "$work/containerd.sock" --namespace k8s.io "$@"; }
deadline=$((SECONDS + 60))
until ctr version >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] && kill -0 $containerd || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
netfilter "$work/netfilter"
for name in $names "ghcr.io/kube-vip/kube-vip:v$(required github.com/kube-vip/kube-vip)" capcmi.local/{hello,podnet}:1; do
    image "$name"
done
ctr content prune references >/dev/null
