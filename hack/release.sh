#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the files of a release, in the given directory, by default dist, from the checked-out commit:
#
#   refdaemon-linux-amd64, refdaemon-linux-arm64   one static file: the controller and all commands; node and launcher
#                                                  say that it was built without libvirt
#   refdaemon-libvirt-linux-amd64                  node and launcher as well; needs glibc, and loads libvirt's client library
#                                                  when it runs
#   *.cdx.json                                     bill of materials of each of them (CycloneDX)
#   virtloom.yaml                                  all that is applied to a cluster
#   LICENSE, THIRD-PARTY-LICENSES.txt              under which terms all that is passed on
#   SHA256SUMS                                     of the files above
#
# The last is for the architecture of this machine alone, as it needs a C compiler. Two builds of one commit with the same Go (and,
# for the last, the same C compiler) are the same, byte by byte, wherever they are made: hack/verify-release.sh tries that.
source "$(dirname "$0")/lib.sh"

main() {
  local to=${1:-dist} file
  [ -z "$(git status --porcelain)" ] || die "there are changes that are not committed, and a release is made of a commit; see: git status"
  SOURCE_DATE_EPOCH=$(epoch)
  export SOURCE_DATE_EPOCH
  rm -rf "${to:?}"
  mkdir -p "$to"
  to=$(realpath "$to")
  say "building refdaemon for $(git describe --tags --always)"
  CGO_ENABLED=0 GOARCH=amd64 release_build "$to/refdaemon-linux-amd64"
  CGO_ENABLED=0 GOARCH=arm64 release_build "$to/refdaemon-linux-arm64"
  CGO_ENABLED=1 release_build "$to/refdaemon-libvirt-linux-$(go env GOARCH)" -tags libvirt_dlopen
  for file in "$to"/refdaemon-*; do
    sbom "$file" "$file.cdx.json"
  done
  install -m 644 LICENSE "$to"
  "$to/refdaemon-linux-$(go env GOARCH)" manifests >"$to/virtloom.yaml"
  go -C tools/release run ./licences -C "$root" -notices "$to/THIRD-PARTY-LICENSES.txt"
  (cd "$to" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
  find "$to" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
  say "the release of $(git describe --tags --always) is in $to:"
  (cd "$to" && du -h --apparent-size -- * | sort -k 2)
}

main "$@"
