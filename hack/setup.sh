#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prepares a machine for the demo and the tests: Debian packages where they are missing, the programs
# of the rig and the guest image in bin. Takes seconds when there is nothing to do.
source "$(dirname "$0")/lib.sh"

# packages and, for each, something it brings: whatever brings it, a package that is not needed is
# not installed.
packages=(
  "busybox-static /var/lib/dpkg/info/busybox-static.list" # user space of the guest; plain busybox will not do
  "ca-certificates /etc/ssl/certs/ca-certificates.crt"
  # Docker's containerd.io brings the first two as well.
  "containerd /usr/bin/containerd" # runs the Pods of nodes with a kubelet
  "runc /usr/sbin/runc /usr/bin/runc"
  "containernetworking-plugins /usr/lib/cni/ptp /opt/cni/bin/ptp" # networks of Pods
  "cpio /bin/cpio /usr/bin/cpio" # packs the guest's initramfs
  "gcc /usr/bin/gcc" # cgo: libvirt binding, race detector
  "iproute2 /sbin/ip /usr/sbin/ip" # networks of the hypervisor nodes
  "libc6-dev /usr/include/stdlib.h"
  "libvirt-clients /usr/bin/virsh"
  "libvirt-daemon /usr/sbin/libvirtd"
  "libvirt-daemon-driver-qemu /usr/lib/$(uname -m)-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so"
  "libxml2-utils /usr/bin/xmllint" # checks definitions against libvirt's schema
  "lz4 /usr/bin/lz4" # unpacks the guest's kernel
  "nftables /usr/sbin/nft" # what kube-proxy makes Services of
  "ovmf /usr/share/OVMF/OVMF_CODE_4M.fd" # UEFI of guests
  "passt /usr/bin/passt" # networks of guests, in the launcher's image
  "qemu-system-x86 /usr/bin/qemu-system-x86_64"
  "qemu-utils /usr/bin/qemu-img"
  "swtpm /usr/bin/swtpm" # TPM of guests
  "swtpm-tools /usr/bin/swtpm_setup"
  "util-linux /usr/bin/unshare"
)

missing_packages() {
  local entry name path
  for entry in "${packages[@]}"; do
    read -r name path <<<"$entry"
    # shellcheck disable=SC2086 # paths are words
    any $path || printf '%s ' "$name"
  done
}

# any PATH... reports whether one of them exists.
any() {
  local path
  for path; do [ ! -e "$path" ] || return 0; done
  return 1
}

install_packages() {
  local missing
  missing=$(missing_packages)
  if [ -z "$missing" ]; then
    say "Debian packages: installed already"
    return
  fi
  command -v apt-get >/dev/null ||
    die "this machine is not a Debian: install what brings ${missing% } with its own package manager, then run this again"
  [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null ||
    die "Debian packages are missing and installing them needs root; run: sudo apt-get install --no-install-recommends ${missing% }"
  say "installing ${missing% }"
  update_lists
  # Nothing of this machine gives way to it (--no-remove): apt-get then says what is in the way, and nothing is done.
  # shellcheck disable=SC2086 # names are words
  with_progress "installing Debian packages" "$bin/.log/apt-install.log" \
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --no-remove $missing
}

# unpacked makes what consists of Debian packages that are unpacked and not installed: what guests boot
# from, and the emulators of other architectures. apt has to know those packages.
unpacked() {
  [ -e "$bin/guest" ] && [ -e "$bin/emulators" ] || compgen -G "/var/lib/apt/lists/*Packages*" >/dev/null || update_lists
  hack/guest.sh
  hack/emulators.sh
}

update_lists() { with_progress "reading package lists" "$bin/.log/apt-update.log" as_root apt-get update; }

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

main() {
  local begin=$SECONDS
  [ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || die "the rig needs Linux on x86_64, this is $(uname -s) on $(uname -m)"
  mkdir -p "$bin/.log"
  install_packages
  # Downloading goes on while the programs are compiled.
  local log=$bin/.log/unpacked.log beside
  unpacked >"$log" 2>&1 </dev/null &
  beside=$!
  # shellcheck disable=SC2064 # the process of now is meant
  trap "kill $beside 2>/dev/null || true" EXIT
  hack/tools.sh
  wait "$beside" || { cat "$log" >&2 && die "guest image and emulators could not be made; what was said is above"; }
  trap - EXIT
  cat "$log"
  say "setup: done in $(elapsed $((SECONDS - begin)))"
}

main
