#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds programs of KubeVirt, virt-controller by default, from the Go module proxy into bin/stock, to measure beside them. The
# module they are built in is made there as well: the versions that KubeVirt replaces must reach no other.
source "$(dirname "$0")/lib.sh"

version=v1.7.0 # later ones require modules that the proxy does not have
[ $# -gt 0 ] || set -- virt-controller
mkdir -p "$bin/stock/module"
cd "$bin/stock/module"
if [ ! -f go.mod ]; then
  go mod init stock.invalid/kubevirt
  kubevirt=$(go mod download -json "kubevirt.io/kubevirt@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  # Some of its modules are not known to the checksum database: KubeVirt's own checksums count.
  install -m 644 "$kubevirt/go.sum" go.sum
  sed -n '/^replace (/,/^)/p' "$kubevirt/go.mod" | grep -v './staging/' >>go.mod
  go mod edit -replace "kubevirt.io/api=kubevirt.io/api@$version" -replace "kubevirt.io/client-go=kubevirt.io/client-go@$version"
fi
flags="-s -w -X kubevirt.io/client-go/version.gitVersion=$version -X kubevirt.io/client-go/version.gitTreeState=clean"
for program in "$@"; do
  [ -x "$bin/stock/$program" ] && continue
  go get -tool "kubevirt.io/kubevirt/cmd/$program@$version"
  go build -trimpath -ldflags "$flags" -o "$bin/stock/$program" "kubevirt.io/kubevirt/cmd/$program"
done
