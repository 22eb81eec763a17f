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

# netfilter FOLDER: copies the programs that kube-proxy calls, their extensions and libraries from the root file system.
netfilter() {
    local called=(usr/sbin/nft usr/sbin/ip{,6}tables{,-save,-restore}) extensions
    mapfile -t extensions < <(cd "$root" && printf '%s\n' usr/lib/*/xtables/*.so)
    {
        printf '%s\n' "${called[@]}" "${extensions[@]}"
        chroot "$root" ldd "${called[@]/#//}" "${extensions[@]/#//}" | sed -n 's|.*[[:space:]]/\(lib[^ ]*\) (.*|\1|p'
    } | sort -u | chroot "$root" tar -c --dereference -T - | tar -C "$1" -x
}

# image NAME: makes the image of the program that the name ends with. The keys in /etc/kubernetes/pki are root's.
image() {
    local program=${1##*/} user=0 files=$work/image
    program=${program%%:*}
    # Static Pods call their program by its name.
    install -D -m 0755 -t "$files/usr/local/bin" "$programs/$program"
    case $program in
        coredns) user=65532 ;;
        pause | hello) user=65534:65534 ;;
        kube-proxy) netfilter "$files" ;;
    esac
    "$here/oci.sh" "$1" "$(config "/usr/local/bin/$program" "$user")" "$files" "$work/$program.tar"
    rm -r "$files"
    ctr images import --local --discard-unpacked-layers "$work/$program.tar" >/dev/null
    rm "$work/$program.tar"
}

# config PROGRAM USER: the configuration of an image.
config() {
    printf '{"Entrypoint": ["%s"], "User": "%s", "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}' "$@"
}

# Kubernetes names the images that it wants. The programs must be of these versions.
kubernetes=$("$programs/kubeadm" version -o short)
names=$("$programs/kubeadm" config images list --kubernetes-version "$kubernetes")
etcd=$("$programs/etcd" --version | sed -n 's/^etcd Version: //p')
coredns=$("$programs/coredns" -version | sed -n 's/^CoreDNS-//p')
for wanted in "etcd:$etcd-0" "coredns:v$coredns"; do
    grep -q "/$wanted\$" <<<"$names" || { printf 'The programs have %s, and kubeadm wants:\n%s\n' "$wanted" "$names" >&2; exit 1; }
done
kube_vip=ghcr.io/kube-vip/kube-vip:$("$programs/kube-vip" version | sed -n 's/^Version: *//p')
pause=$(grep /pause: <<<"$names")
grep -qF "sandbox = '$pause'" "$root/etc/containerd/config.toml" ||
    { echo "The sandbox image of files/etc/containerd/config.toml is not $pause, which kubeadm wants" >&2; exit 1; }

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
for name in $names "$kube_vip" capcmi.local/{hello,podnet}:1; do
    image "$name"
done
ctr content prune references >/dev/null
