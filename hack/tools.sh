#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the programs of the rig and of "make generate" into bin: those found on this machine in a
# version that fits (in KUBEBUILDER_ASSETS, then in PATH) as links, the others built from the modules
# that tools/go.mod pins. Does nothing if it did so before.
source "$(dirname "$0")/lib.sh"

kubernetes=$(module_version tools k8s.io/kubernetes)
etcd=$(module_version tools go.etcd.io/etcd/server/v3)
kwok=$(module_version tools sigs.k8s.io/kwok)

# name, package, how it prints its version (nothing: always built), a pattern that version has to match
programs=(
  "etcd|go.etcd.io/etcd/server/v3|--version|etcd Version: ${etcd#v}"
  "kube-apiserver|k8s.io/kubernetes/cmd/kube-apiserver|--version|Kubernetes $kubernetes"
  "kube-controller-manager|k8s.io/kubernetes/cmd/kube-controller-manager|--version|Kubernetes $kubernetes"
  "kube-scheduler|k8s.io/kubernetes/cmd/kube-scheduler|--version|Kubernetes $kubernetes"
  "kube-proxy|k8s.io/kubernetes/cmd/kube-proxy|--version|Kubernetes $kubernetes"
  "kubelet|k8s.io/kubernetes/cmd/kubelet|--version|Kubernetes $kubernetes"
  "kubectl|k8s.io/kubernetes/cmd/kubectl|version --client|Client Version: $kubernetes"
  "kwok|sigs.k8s.io/kwok/cmd/kwok|--version|$kwok"
  "controller-gen|sigs.k8s.io/controller-tools/cmd/controller-gen||"
)

# complete reports whether every program exists (a link may be dangling). One more than those is pause, of which every Pod on a
# node with a kubelet has a container.
complete() {
  local entry
  for entry in "${programs[@]}"; do
    [ -x "$bin/${entry%%|*}" ] || return 1
  done
  [ -x "$bin/pause" ]
}

# existing NAME FLAGS VERSION prints the path of a program of this machine that fits: one of the same
# minor version as the pinned one.
existing() {
  local name=$1 flags=$2 minor=${3%.*} candidate said
  [ -n "$flags" ] || return 0
  for candidate in ${KUBEBUILDER_ASSETS:+"$KUBEBUILDER_ASSETS/$name"} "$(type -P "$name" || true)"; do
    [ -x "$candidate" ] || continue
    candidate=$(realpath "$candidate")
    # Programs in bin were built here, except links of an earlier run.
    [ -L "$bin/$name" ] || [ ! "$candidate" -ef "$bin/$name" ] || continue
    # shellcheck disable=SC2086 # flags are words
    said=$(timeout 10 "$candidate" $flags 2>/dev/null || true)
    if [[ $said == *"$minor."* ]]; then
      printf '%s' "$candidate"
      return
    fi
  done
}

# linker_flags make Kubernetes report its version; without them it reports v0.0.0.
linker_flags() {
  local p=k8s.io/component-base/version v=${kubernetes#v}
  printf '%s' "-s -w -X $p.gitVersion=$kubernetes -X $p.gitMajor=${v%%.*} -X $p.gitMinor=$(cut -d . -f 2 <<<"$v")" \
    " -X $p.gitTreeState=clean -X $p.gitCommit=unknown -X $p.buildDate=2026-01-01T00:00:00Z" \
    " -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"
}

main() {
  local print name package flags version found packages=() names=()
  print=$(fingerprint tools/go.mod tools/go.sum hack/tools.sh hack/pause/pause.c)
  if stamped tools "$print" && complete; then
    say "programs of the rig: in bin already"
    return
  fi
  mkdir -p "$bin/.new"
  local entry
  for entry in "${programs[@]}"; do
    IFS='|' read -r name package flags version <<<"$entry"
    found=$(existing "$name" "$flags" "$version")
    if [ -n "$found" ]; then
      say "$name: taking $found"
      ln -sfn "$found" "$bin/$name"
    else
      names+=("$name")
      packages+=("$package")
    fi
  done
  if [ ${#packages[@]} -gt 0 ]; then
    say "building ${names[*]}: about 8 minutes the first time on two cores, a minute once compiled"
    with_progress "downloading modules" "$bin/.log/download.log" go -C tools list -deps "${packages[@]}"
    parts="$(grep -vc '^go: ' "$bin/.log/download.log") packages" with_progress "compiling" "$bin/.log/tools.log" \
      go -C tools build -v -trimpath -ldflags "$(linker_flags)" -o "$bin/.new/" "${packages[@]}"
    # The package of etcd is called server.
    [ ! -e "$bin/.new/server" ] || mv "$bin/.new/server" "$bin/.new/etcd"
    for name in "${names[@]}"; do
      mv -f "$bin/.new/$name" "$bin/$name"
    done
  fi
  gcc -static -Os -s -Wall -Wextra -Werror -o "$bin/.new/pause" hack/pause/pause.c
  mv -f "$bin/.new/pause" "$bin/pause"
  rm -rf "$bin/.new"
  stamp tools "$print"
}

main
