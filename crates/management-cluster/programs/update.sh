#!/bin/sh
# Writes the go.mod and go.sum of each folder beside it, for the versions named here. Run it to move to other
# versions, and commit what it writes; src/programs/go_module.rs names the same versions.
set -eu
cd "$(dirname "$0")"
kubernetes=1.36.3
etcd=v3.6.6
cluster_api=v1.14.2
machine_controller_manager=v0.62.1
helm=v3.21.4
cluster_api_operator=v0.29.0
ipam_in_cluster=v1.1.0
flux=v1.9.6
# The last release whose programs are part of its main module.
cert_manager=v1.11.5
cli_utils=v1.2.3
gopher_lua=v1.1.1
go=1.26.0

start() {
    rm -f go.mod go.sum
    go mod init "capcmi.test/programs/$1" 2>/dev/null
    go mod edit -go="$go"
}

# k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them by folders of its own
# repository, which does not apply to a module that depends on it: they are required here at the version
# published with the release.
(
    cd kubernetes
    start kubernetes
    source=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/.*"GoMod": "\(.*\)",*/\1/p')
    go mod edit -require="k8s.io/kubernetes@v$kubernetes" -require="go.etcd.io/etcd/server/v3@$etcd"
    sed -n 's|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$source" | grep -v /sample- | while read -r module; do
        go mod edit -require="$module@v0.${kubernetes#*.}"
    done
    for program in kube-apiserver kube-controller-manager kubectl; do
        go mod edit -tool="k8s.io/kubernetes/cmd/$program"
    done
    go mod edit -tool=go.etcd.io/etcd/server/v3
    go mod tidy
)

# Without the second requirement `go mod tidy` looks for cluster-api/api at the v0.0.0
# that the first one replaces.
(
    cd cluster-api
    start cluster-api
    go mod edit -require="sigs.k8s.io/cluster-api@$cluster_api" -require="sigs.k8s.io/cluster-api/api@$cluster_api"
    for program in core cmd/clusterctl bootstrap/kubeadm controlplane/kubeadm; do
        go mod edit -tool="sigs.k8s.io/cluster-api/$program"
    done
    go mod tidy
)

# Requires the versions of kubernetes/go.mod instead of a module's own, so that `go build` takes most of it from what it
# has built for Kubernetes: seconds instead of minutes.
as_kubernetes() {
    sed -n 's|^[[:space:]]\([^ ]*\) \(v[^ ]*\).*|\1@\2|p' ../kubernetes/go.mod | grep -v '^k8s.io/kubernetes@' |
        while read -r library; do go mod edit -require="$library"; done
}

# The machine controller of its module calls drivers by gRPC.
(
    cd machine-controller-manager
    start machine-controller-manager
    module=github.com/gardener/machine-controller-manager
    go mod edit -require="$module@$machine_controller_manager" -tool="$module/cmd/machine-controller-manager"
    as_kubernetes
    go mod tidy
)

(
    cd helm
    start helm
    go mod edit -require="helm.sh/helm/v3@$helm" -tool=helm.sh/helm/v3/cmd/helm
    as_kubernetes
    go mod tidy
)

# Of an older Cluster API, and so of older libraries than those of the other programs.
(
    cd cluster-api-operator
    start cluster-api-operator
    module=sigs.k8s.io/cluster-api-operator
    go mod edit -require="$module@$cluster_api_operator" -tool="$module/cmd"
    go mod tidy
)

(
    cd ipam-in-cluster
    start ipam-in-cluster
    module=sigs.k8s.io/cluster-api-ipam-provider-in-cluster
    go mod edit -require="$module@$ipam_in_cluster" -tool="$module"
    go mod tidy
)

(
    cd cert-manager
    start cert-manager
    module=github.com/cert-manager/cert-manager
    go mod edit -require="$module@$cert_manager"
    for program in controller webhook cainjector; do go mod edit -tool="$module/cmd/$program"; done
    go mod tidy
)

# Nothing is built of it: it has the definition of Flux's Kustomizations.
(
    cd flux
    start flux
    module=github.com/fluxcd/kustomize-controller
    go mod edit -require="$module@$flux"
    go mod download "$module"
)

# The health of objects as Flux, at the version above, and Argo CD see it.
(
    cd health
    start health
    go mod edit -require="github.com/fluxcd/cli-utils@$cli_utils" -require="github.com/yuin/gopher-lua@$gopher_lua"
    go mod tidy
)
