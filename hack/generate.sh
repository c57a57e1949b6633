#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generates the definitions of KubeVirt's objects from kubevirt.io/api into the folder given, by
# default refdaemon/config/crd, the code of the launcher's command channel from its protobuf
# file into a second one, by default beside that file, and the roles of the daemons from the markers in
# their code into a third one, by default refdaemon/config/rbac.
source "$(dirname "$0")/lib.sh"

# One version of each group: the one that KubeVirt stores.
paths=(
  core/v1
  instancetype/v1beta1
  migrations/v1alpha1
)

# The packages of the controller, and those of the node agent: their markers (+kubebuilder:rbac) define their rights.
controller=(./vmi/... ./vm/... ./migration/... ./template/... ./expectations/... ./refdaemon ./refdaemon/metricsauth ./refdaemon/servingcert ./refdaemon/authority ./refdaemon/guard)
node=(./domain/... ./refdaemon/metricsauth ./refdaemon/nodecert)

# roles DIR
roles() {
  local who
  for who in controller node; do
    local -n packages=$who
    # Packages that need libvirt's headers have no markers.
    CGO_ENABLED=0 "$bin/controller-gen" \
      "rbac:roleName=virtloom-$who,fileName=${who}_role.yaml,headerFile=hack/generated.yaml.txt" \
      "${packages[@]/#/paths=}" output:rbac:dir="$1"
  done
}

main() {
  local proto=domain/launcher/launcherpb
  local to=${1:-refdaemon/config/crd} code=${2:-$proto} work
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder of now is meant
  trap "rm -rf '$work'" EXIT
  to=$(realpath "$to")
  # The types have a floating point field, hence the dangerous types.
  (cd tools && "$bin/controller-gen" crd:crdVersions=v1,allowDangerousTypes=true \
    "${paths[@]/#/paths=kubevirt.io/api/}" output:crd:dir="$work")
  go -C tools run ./crdfinish "$work" "$to"
  code=$(realpath "$code")
  go -C tools/protogen run . "$root/$proto" launcher.proto "$code"
  gofmt -w "$code"/*.pb.go
  roles "${3:-refdaemon/config/rbac}"
}

main "$@"
