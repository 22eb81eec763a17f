#!/bin/sh
# Writes the go.mod and go.sum of each folder beside it that has dependencies, for the versions named here. Run it to move to
# other versions, and commit the result.
set -eu
cd "$(dirname "$0")"
# Besides the version of the control plane in crates/management-cluster, for upgrades.
kubernetes_before=1.36.2
containerd=v2.4.2
runc=v1.5.2
# The version in kubeadm's constants.
coredns=v1.14.2
kube_vip=v1.0.0
go=1.26.0

start() {
    rm -f go.mod go.sum
    go mod init "capcmi.test/node-image/$1" 2>/dev/null
    go mod edit -go="$go"
}

control_plane=$(realpath ../../../crates/management-cluster/programs/kubernetes/go.mod)
kubernetes_now=$(sed -n 's|^[[:space:]]k8s.io/kubernetes v\([^ ]*\).*|\1|p' "$control_plane")

# The other requirements are those of the control plane: `go build` then reuses what it has compiled for that. All staging
# modules are required at the version of the release (as told in update.sh there), since kubeadm and kube-proxy want some
# that the control plane does not.
for kubernetes in "$kubernetes_before" "$kubernetes_now"; do
    rm -rf "kubernetes/v$kubernetes"
    mkdir -p "kubernetes/v$kubernetes"
    (
        cd "kubernetes/v$kubernetes"
        start kubernetes
        source=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)",*/\1/p')
        staging=$(sed -n 's|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$source" | grep -v /sample-)
        sed -n 's|^[[:space:]]\([^ ]*\) \(v[^ ]*\).*|\1 \2|p' "$control_plane" | while read -r library version; do
            go mod edit -require="$library@$version"
        done
        for module in $staging; do go mod edit -require="$module@v0.${kubernetes#*.}"; done
        go mod edit -require="k8s.io/kubernetes@v$kubernetes" -tool=go.etcd.io/etcd/server/v3
        for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl; do
            go mod edit -tool="k8s.io/kubernetes/cmd/$program"
        done
        go mod tidy
    )
done
(
    cd containerd
    start containerd
    go mod edit -require="github.com/containerd/containerd/v2@$containerd"
    for program in containerd containerd-shim-runc-v2 ctr; do
        go mod edit -tool="github.com/containerd/containerd/v2/cmd/$program"
    done
    go mod tidy
)
(
    cd runc
    start runc
    go mod edit -require="github.com/opencontainers/runc@$runc" -tool=github.com/opencontainers/runc
    go mod tidy
)
(
    cd coredns
    start coredns
    go mod edit -require="github.com/coredns/coredns@$coredns"
    go mod tidy
)
# The checksum database does not know this module; go.sum pins its content.
(
    cd kube-vip
    start kube-vip
    go mod edit -require="github.com/kube-vip/kube-vip@$kube_vip" -tool=github.com/kube-vip/kube-vip
    GONOSUMDB=github.com/kube-vip/kube-vip go mod tidy
)
# With the libraries of the latest control plane, which are compiled already.
(
    libraries=$PWD/kubernetes/v$kubernetes_now/go.mod
    cd ../../../tests/podnet
    start podnet
    sed -n 's|^[[:space:]]\([^ ]*\) \(v[^ ]*\).*|\1@\2|p' "$libraries" | grep -v '^k8s.io/kubernetes@' |
        while read -r library; do go mod edit -require="$library"; done
    go mod tidy
)
