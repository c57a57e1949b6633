#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the output of hack/image.sh, in the given directory, by default bin/images: it has no unexpected files, and, as root,
# the programs work in isolation, those of the launcher as its user.
source "$(dirname "$0")/lib.sh"

# Everything but folders that may be in all images.
common='^(etc/(passwd|group|nsswitch\.conf)|var/run|usr/bin/refdaemon|usr/share/doc/virtloom/(LICENSE|THIRD-PARTY-LICENSES\.txt))$'
# Further content of the agent's image: qemu-img, libraries with their dynamic linker, and the licences of their packages.
agents='^(usr/bin/qemu-img|(usr/)?lib(64)?/([^/]*/)*[^/]*\.so(\.[0-9.]+)?|usr/share/doc/([^/]+/copyright|virtloom/packages))$'
# Further content of the launcher's: programs, firmware, and libvirt's data.
launchers='^(usr/s?bin/(virt-launcher(-monitor)?|container-disk|virt-tail|virt-probe|cp|libvirtd|qemu-system-x86_64|swtpm(_ioctl|_setup|_localca|_cert)?|certtool|passt(\.avx2)?)'
launchers+='|bin/(ba)?sh|etc/libvirt/qemu\.conf|usr/share/(qemu|seabios|OVMF)/[^/]+\.(bin|fd)|usr/share/qemu/firmware/[^/]+\.json|usr/lib/ipxe/qemu/[^/]+\.rom'
launchers+='|usr/share/libvirt/cpu_map/[^/]+\.xml)$'

# unexpected ROOT PATTERN... prints the files that match none of the patterns.
unexpected() {
  local root=$1
  shift
  (cd "$root" && find . -mindepth 1 ! -type d -printf '%P\n') | grep -Ev "$(IFS='|'; printf '%s' "$*")" || true
}

# privileged ROOT prints setuid, setgid and world-writable files.
privileged() { find "$1" ! -type l \( -perm /6000 -o -perm -0002 ! -path "$1/tmp" \); }

# dangling ROOT prints links to nothing.
dangling() { find "$1" -type l ! -path "$1/var/run" -printf '%p %h/%l\n' | while read -r link target; do [ -e "$target" ] || printf '%s\n' "$link"; done; }

# needed ROOT prints the names of all libraries that something in the image is linked with, or loads when it runs.
needed() {
  {
    printf '%s\n' libvirt.so.0 libvirt-qemu.so.0 libvirt-admin.so.0
    find "$1" -type f -perm -0100 -exec readelf -d {} + | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
    find "$1" -type f -perm -0100 -exec readelf -l {} + | sed -n 's|.*interpreter: .*/\(.*\)\]|\1|p'
  } | sort -u
}

# libraries ROOT prints the names of those that are there, but for the modules that libvirtd and QEMU look for by themselves.
libraries() { find "$1" -name '*.so*' ! -path '*-linux-gnu/qemu/*' ! -path '*-linux-gnu/libvirt/*' -printf '%f\n' | sort -u; }

# content NAME FOLDER PATTERN... checks what is in an image.
content() {
  local name=$1 root=$2 found
  shift 2
  found=$(unexpected "$root" "$@")
  [ -z "$found" ] || die "the image $name has what it does not need: $found"
  found=$(privileged "$root")
  [ -z "$found" ] || die "the image $name has what is too powerful: $found"
  found=$(dangling "$root")
  [ -z "$found" ] || die "the image $name has links to nothing: $found"
}

# linking NAME FOLDER checks that the libraries of an image are those that its programs need.
linking() {
  local found
  found=$(comm -13 <(needed "$2") <(libraries "$2"))
  [ -z "$found" ] || die "nothing in the image $1 is linked with $found"
  found=$(comm -23 <(needed "$2") <(libraries "$2"))
  [ -z "$found" ] || die "the image $1 lacks $found"
}

# inside ROOT COMMAND... runs a command as user 107 in what a container of the image has: its files, /proc and /dev.
inside() {
  # shellcheck disable=SC2016 # for the shell inside
  unshare --mount --pid --fork sh -euc '
    mount -t tmpfs none /mnt
    mkdir -m 755 /mnt/upper /mnt/work /mnt/root
    mount -t overlay none -o "lowerdir=$0,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
    mkdir -p /mnt/root/proc /mnt/root/dev
    mount -t proc proc /mnt/root/proc
    mount --bind /dev /mnt/root/dev
    exec chroot --userspec 107:107 /mnt/root "$@"' "$(realpath "$1")" "${@:2}"
}

# launched ROOT starts the launcher's programs.
launched() {
  local root=$1 found command
  for command in '/usr/sbin/libvirtd --version' '/usr/bin/qemu-system-x86_64 --version' '/usr/bin/qemu-img --version' '/usr/bin/swtpm --version' \
    '/usr/bin/swtpm_setup --print-capabilities' '/usr/bin/swtpm_cert --version' '/usr/bin/certtool --version' '/usr/bin/passt --version' '/usr/bin/cp --version' \
    '/usr/bin/container-disk --no-op' '/usr/bin/virt-launcher-monitor -h' '/usr/bin/virt-launcher -h' '/bin/bash -c exit 0'; do
    # shellcheck disable=SC2086 # words
    found=$(inside "$root" $command 2>&1 </dev/null) || die "$command in the launcher's image does not work: $found"
  done
  # Modules are loaded when they are used, so a missing symbol or library shows only then.
  for command in $(find "$root/usr/lib" \( -path '*/libvirt/*.so' -o -path '*/qemu/*.so' \) -printf '/usr/lib/%P\n'); do
    found=$(inside "$root" /lib64/ld-linux-x86-64.so.2 --list "$command" 2>&1) && [[ $found != *'not found'* ]] ||
      die "the module $command in the launcher's image does not work: $found"
  done
  for command in '-accel help' '-machine none -device virtio-gpu-pci,help' '-machine none -device usb-host,help' '-machine none -device usb-redir,help'; do
    # shellcheck disable=SC2086 # words
    found=$(inside "$root" /usr/bin/qemu-system-x86_64 $command 2>&1 </dev/null) || die "QEMU $command in the launcher's image does not work: $found"
  done
  [[ $(inside "$root" /usr/bin/qemu-system-x86_64 -accel help) = *tcg* ]] || die "QEMU in the launcher's image cannot emulate"
}

main() {
  local from=${1:-bin/images} name found
  content controller "$from/controller" "$common"
  content node "$from/node" "$common" "$agents"
  content launcher "$from/launcher" "$common" "$agents" "$launchers"
  linking node "$from/node"
  linking launcher "$from/launcher"
  # What runs in containers of little memory is small.
  for name in container-disk virt-tail; do
    [ "$(stat -c %s "$from/launcher/usr/bin/$name")" -lt 2097152 ] || die "$name is larger than 2 MiB"
  done
  for name in container-disk virt-tail virt-probe; do
    ! readelf -l "$from/launcher/usr/bin/$name" | grep -q interpreter || die "$name is not static: it runs where there is no C library"
  done
  if [ "$(id -u)" -ne 0 ]; then
    say "images: they have what they need and nothing else; not started, as that needs root"
    return
  fi
  for name in controller node launcher; do
    found=$(chroot "$from/$name" /usr/bin/refdaemon version 2>&1) || die "the image $name does not work: $found"
  done
  # As the agent loads them: all symbols of all libraries have to be found.
  for name in node launcher; do
    found=$(LD_BIND_NOW=1 chroot "$from/$name" /lib64/ld-linux-x86-64.so.2 --preload "libvirt.so.0 libvirt-qemu.so.0 libvirt-admin.so.0" \
      /usr/bin/qemu-img --version 2>&1 >/dev/null) || die "qemu-img in the image $name does not work: $found"
    [ -z "$found" ] || die "libraries in the image $name do not work: $found"
  done
  launched "$from/launcher"
  say "images: they have what they need and nothing else, and start"
}

main "$@"
