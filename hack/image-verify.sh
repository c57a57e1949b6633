#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the output of hack/image.sh, in the given directory, by default bin/images: it has no unexpected files, and, as root,
# the programs work in isolation.
source "$(dirname "$0")/lib.sh"

# Everything but folders that may be in both images.
common='^(etc/(passwd|group|nsswitch\.conf)|var/run|usr/bin/refdaemon|usr/share/doc/virtloom/(LICENSE|THIRD-PARTY-LICENSES\.txt))$'
# Further content of the agent's image: qemu-img, libraries with their dynamic linker, and the licences of their packages.
agents='^(usr/bin/qemu-img|(usr/)?lib(64)?/([^/]*/)*[^/]*\.so(\.[0-9.]+)?|usr/share/doc/([^/]+/copyright|virtloom/packages))$'

# unexpected ROOT PATTERN... prints the files that match none of the patterns.
unexpected() {
  local root=$1
  shift
  (cd "$root" && find . -mindepth 1 ! -type d -printf '%P\n') | grep -Ev "$(IFS='|'; printf '%s' "$*")" || true
}

# privileged ROOT prints setuid, setgid and world-writable files.
privileged() { find "$1" ! -type l \( -perm /6000 -o -perm -0002 ! -path "$1/tmp" \); }

# needed ROOT prints the names of all libraries that something in the image is linked with, or loads when it runs.
needed() {
  {
    printf '%s\n' libvirt.so.0 libvirt-qemu.so.0 libvirt-admin.so.0
    find "$1" -type f -perm -0100 -exec readelf -d {} + | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
    find "$1" -type f -perm -0100 -exec readelf -l {} + | sed -n 's|.*interpreter: .*/\(.*\)\]|\1|p'
  } | sort -u
}

# libraries ROOT prints the names of those that are there.
libraries() { find "$1" -name '*.so*' -printf '%f\n' | sort -u; }

main() {
  local from=${1:-bin/images} name found patterns=("$common")
  for name in controller node; do
    [ "$name" = controller ] || patterns+=("$agents")
    found=$(unexpected "$from/$name" "${patterns[@]}")
    [ -z "$found" ] || die "the image $name has what it does not need: $found"
    found=$(privileged "$from/$name")
    [ -z "$found" ] || die "the image $name has what is too powerful: $found"
  done
  found=$(comm -13 <(needed "$from/node") <(libraries "$from/node"))
  [ -z "$found" ] || die "nothing in the agent's image is linked with $found"
  found=$(comm -23 <(needed "$from/node") <(libraries "$from/node"))
  [ -z "$found" ] || die "the agent's image lacks $found"
  if [ "$(id -u)" -ne 0 ]; then
    say "images: they have what they need and nothing else; not started, as that needs root"
    return
  fi
  for name in controller node; do
    found=$(chroot "$from/$name" /usr/bin/refdaemon version 2>&1) || die "the image $name does not work: $found"
  done
  # As the agent loads them: all symbols of all libraries have to be found.
  found=$(LD_BIND_NOW=1 chroot "$from/node" /lib64/ld-linux-x86-64.so.2 --preload "libvirt.so.0 libvirt-qemu.so.0 libvirt-admin.so.0" \
    /usr/bin/qemu-img --version 2>&1 >/dev/null) || die "qemu-img in the agent's image does not work: $found"
  [ -z "$found" ] || die "libraries in the agent's image do not work: $found"
  say "images: they have what they need and nothing else, and start"
}

main "$@"
