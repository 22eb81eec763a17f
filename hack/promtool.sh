#!/usr/bin/env bash
# Prints the path of promtool: the program on the PATH, or else Debian's, which is unpacked once in the user's cache.
set -euo pipefail

if command -v promtool; then exit; fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/capcmi/programs/promtool"
if [ ! -x "$cache/promtool" ]; then
  if ! command -v apt-get > /dev/null; then
    echo "promtool is not on the PATH, and there is no apt-get to fetch it with: install Prometheus" >&2
    exit 1
  fi
  mkdir -p "$cache"
  folder=$(mktemp -d "$cache/.fetching.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  # With separate lists: the computer's may be missing or old, and belong to root.
  mkdir -p "$folder/lists/partial" "$folder/archives/partial"
  apt=(apt-get --quiet --option "Dir::State::Lists=$folder/lists" --option "Dir::Cache=$folder"
    --option "APT::Sandbox::User=$(id -un)")
  (cd "$folder" && "${apt[@]}" update && "${apt[@]}" download prometheus && dpkg-deb --extract prometheus_*.deb .) >&2
  mv "$folder/usr/bin/promtool" "$cache/promtool"
fi
echo "$cache/promtool"
