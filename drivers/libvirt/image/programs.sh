#!/usr/bin/env bash
# Builds the programs of the node image from their Go modules, once for each version of them, and prints the folder that
# has them: kubelet, kube-scheduler, containerd, containerd-shim-runc-v2, ctr, runc, pause and hello.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/programs
key=$(cd "$here" && find programs programs.sh -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-12)
folder=$cache/libvirt-node-$key
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder/made" ] || { echo "$folder"; exit 0; }
work=$(mktemp -d "$cache/.building-XXXXXX")
trap 'rm -rf "$work"' EXIT
cp -r "$here/programs" "$work/sources"
mkdir "$work/bin"

# build MODULE CGO ARGUMENT…
build() {
    local module=$1 cgo=$2
    shift 2
    echo "building the programs of $module (only the first time; this takes minutes)" >&2
    (cd "$work/sources/$module" &&
        CGO_ENABLED=$cgo GOWORK=off GOTMPDIR=$work go build -mod=readonly -buildvcs=false -o "$work/bin/" "$@")
}

kubernetes=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$here/programs/kubernetes/go.mod")
containerd=$(sed -n 's|^\tgithub.com/containerd/containerd/v2 \(v[0-9.]*\).*|\1|p' "$here/programs/containerd/go.mod")
version=k8s.io/component-base/version
minor=${kubernetes#v1.}
# They name their release only when it is linked in.
build kubernetes 0 "-ldflags=-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}" tool
build containerd 0 -tags no_btrfs,no_devmapper,no_zfs \
    "-ldflags=-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" tool
# It is C that enters the namespaces. Static, since the guest may have another libc than this computer; with seccomp, which
# the kubelet asks for in every Pod.
build runc 1 -tags seccomp,netgo,osusergo '-ldflags=-s -w -extldflags -static' tool
build containers 0 '-ldflags=-s -w' ./...
touch "$work/bin/made"
rm -rf "$folder"
mv "$work/bin" "$folder"
echo "$folder"
