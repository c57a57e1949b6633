#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the release and the images, those of the tests' guest included, twice, from two clones of the last commit in folders of
# different names, and fails unless both are the same. The second time it compiles everything again, with an empty build cache, which takes many minutes; with the
# argument "linked" it compiles nothing twice, and tries the rest: linking, and all that is made from the programs. Then skopeo, which
# shares its code for images with podman, takes every image and archive.
source "$(dirname "$0")/lib.sh"

work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

# made NAME prints the digests of all that was made in a clone.
made() {
  (cd "$work/$1" && find dist bin/images/oci bin/images/*.tar -type f -exec sha256sum {} + | LC_ALL=C sort -k 2)
}

main() {
  local cache=$work/cache
  [ "${1:-}" != linked ] || cache=$(go env GOCACHE)
  local first=one second=another/place clone
  for clone in "$first" "$second"; do
    git clone --quiet --no-hardlinks . "$work/$clone"
  done
  release "$first"
  taken "$work/$first/bin/images"
  GOCACHE=$cache release "$second"
  [ "$(grep -c -e dist/refdaemon -e '\.tar$' <(made "$first"))" -eq 10 ] || die "the release is not complete"
  diff <(made "$first") <(made "$second") || die "two builds of one commit differ"
  say "two builds of $(git -C "$work/$first" rev-parse --short HEAD) are the same: $(made "$first" | wc -l) files"
}

release() {
  (cd "$work/$1" && hack/guest.sh && hack/release.sh && hack/image.sh) >"$work/log" 2>&1 || { cat "$work/log"; die "the release could not be made"; }
}

# taken DIR has skopeo copy the images of a layout and of the archives beside it, which compares every digest. It is Debian's, unpacked
# and not installed where it is missing.
taken() {
  local dir=$1 skopeo=$work/skopeo count=0 deb archive name tag
  mkdir -p "$skopeo/archives/partial"
  if ! command -v skopeo >/dev/null; then
    apt-get -qq -y -o Dir::Cache::archives="$skopeo/archives" --download-only --no-install-recommends install skopeo ||
      die "cannot download skopeo, and whoever makes a release tries the images with it: run 'apt-get update' as root"
    for deb in "$skopeo"/archives/*.deb; do dpkg-deb -x "$deb" "$skopeo"; done
  fi
  copy() {
    count=$((count + 1))
    rm -rf "$skopeo/copy"
    PATH=$PATH:$skopeo/usr/bin LD_LIBRARY_PATH=$skopeo/usr/lib/$(uname -m)-linux-gnu skopeo --insecure-policy copy --quiet "$1" "dir:$skopeo/copy" ||
      die "skopeo does not take $1"
  }
  for archive in "$dir"/*.tar; do
    for tag in $(tar -xOf "$archive" manifest.json | grep -oE '"RepoTags":\[[^]]*' | grep -oE '[^"]+:[^":]+"' | tr -d '"'); do
      copy "docker-archive:$archive:$tag"
    done
  done
  for name in $(grep -oE '"org.opencontainers.image.ref.name": *"[^"]+' "$dir/oci/index.json" | cut -d '"' -f 4); do
    copy "oci:$dir/oci:$name"
  done
  # Three images, and those of the guest, in archives; three in the layout.
  [ "$count" -ge 9 ] || die "skopeo has found $count images only"
}

main "$@"
