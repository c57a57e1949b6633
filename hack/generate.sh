#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generates the definitions of KubeVirt's objects from kubevirt.io/api into the folder given, by
# default refdaemon/config/crd, and the code of the launcher's command channel from its protobuf
# file into a second one, by default beside that file.
source "$(dirname "$0")/lib.sh"

# One version of each group: the one that KubeVirt stores.
paths=(
  core/v1
  backup/v1alpha1
  clone/v1beta1
  export/v1
  instancetype/v1beta1
  migrations/v1alpha1
  pool/v1beta1
  snapshot/v1beta1
)

main() {
  local proto=domain/launcher/launcherpb
  local to=${1:-refdaemon/config/crd} code=${2:-$proto} work
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder of now is meant
  trap "rm -rf '$work'" EXIT
  to=$(realpath "$to")
  # The types have a floating point field, hence the dangerous types.
  (cd tools && "$bin/controller-gen" crd:crdVersions=v1,allowDangerousTypes=true,maxDescLen=0 \
    "${paths[@]/#/paths=kubevirt.io/api/}" output:crd:dir="$work")
  go -C tools run ./crdfinish "$work" "$to"
  code=$(realpath "$code")
  go -C tools/protogen run . "$root/$proto" launcher.proto "$code"
  gofmt -w "$code"/*.pb.go
}

main "$@"
