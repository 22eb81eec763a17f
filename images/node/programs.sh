#!/usr/bin/env bash
# Builds the programs of a Go module, and prints the folder that has them. The folder is reused until the module or this
# script changes.
#
#   programs.sh MODULE   a folder in programs, such as kubernetes/v1.36.3, or the path of another module
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/programs" && cd "$1" && pwd)
name=$(basename "$source")

cache=${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/programs
key=$({ cat "$here/programs.sh"; cd "$source" && find . -type f | LC_ALL=C sort | xargs sha256sum; } | sha256sum | cut -c1-12)
folder=$cache/node-$name-$key
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder" ] || { echo "$folder"; exit 0; }
work=$(mktemp -d "$cache/.building-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
echo "building the programs of $name (only the first time; this takes minutes)" >&2

# version MODULE: the required version of a module
version() { sed -n "s|^[[:space:]]*\(require \)\?$1 \(v[^ ]*\).*|\2|p" "$source/go.mod"; }

# Programs name their release only when it is linked in.
cgo=0 tags=() link='-s -w'
case $name in
    v*)
        minor=${name#v1.} package=k8s.io/component-base/version
        link+=" -X $package.gitVersion=$name -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
        ;;
    containerd)
        tags=(-tags 'no_btrfs,no_devmapper,no_zfs')
        link+=" -X github.com/containerd/containerd/v2/version.Version=$(version github.com/containerd/containerd/v2)"
        ;;
    runc)
        # C code enters the namespaces. Static, since the node may have another libc than this computer; with seccomp, which
        # the kubelet asks for in every Pod.
        cgo=1 tags=(-tags 'seccomp,netgo,osusergo')
        link+=" -extldflags -static -X main.version=$(version github.com/opencontainers/runc)"
        ;;
    kube-vip) link+=" -X main.Version=$(version github.com/kube-vip/kube-vip)" ;;
esac
packages=tool
grep -q '^tool' "$source/go.mod" || packages=./...
(cd "$source" && CGO_ENABLED=$cgo GOWORK=off GOTMPDIR=$work \
    go build -mod=readonly -buildvcs=false "${tags[@]}" "-ldflags=$link" -o "$work/bin/" $packages) >&2
# `go build` names etcd after its package.
[ ! -e "$work/bin/server" ] || mv "$work/bin/server" "$work/bin/etcd"
mv "$work/bin" "$folder"
echo "$folder"
