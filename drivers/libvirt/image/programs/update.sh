#!/bin/sh
# Writes the go.mod and go.sum of each folder beside it that has dependencies, for the versions named here. Kubernetes has
# the version of the control plane in crates/management-cluster. Run it to move to other versions, and commit what it
# writes.
set -eu
cd "$(dirname "$0")"
containerd=v2.4.2
runc=v1.5.2
go=1.26.0

start() {
    rm -f go.mod go.sum
    go mod init "capcmi.test/node-image/$1" 2>/dev/null
    go mod edit -go="$go"
}

# With the requirements of the control plane: `go build` then takes most of it from what it has built for that. The kubelet
# wants more of Kubernetes' staging modules, which are published at the version of the release (as told in update.sh there).
(
    cd kubernetes
    start kubernetes
    control_plane=../../../../../crates/management-cluster/programs/kubernetes/go.mod
    kubernetes=$(sed -n 's|^[[:space:]]k8s.io/kubernetes v\([^ ]*\).*|\1|p' "$control_plane")
    source=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)",*/\1/p')
    sed -n 's|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$source" | grep -v /sample- | while read -r module; do
        go mod edit -require="$module@v0.${kubernetes#*.}"
    done
    sed -n 's|^[[:space:]]\([^ ]*\) \(v[^ ]*\).*|\1@\2|p' "$control_plane" |
        while read -r library; do go mod edit -require="$library"; done
    go mod edit -tool=k8s.io/kubernetes/cmd/kubelet -tool=k8s.io/kubernetes/cmd/kube-scheduler
    go mod tidy
)
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
