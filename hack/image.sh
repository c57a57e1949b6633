#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the images: first the build context of refdaemon/Containerfile, controller/, node/ and launcher/ below the given
# directory, by default bin/images, each a complete file system and nothing more than its programs need. Then the images
# themselves: in oci/ beside them, a layout as the OCI defines it, which "skopeo copy oci:bin/images/oci:localhost/virtloom-node:dev
# ..." and others take, and an archive of each, NAME.tar, in the format of "docker save", for "ctr images import" and others;
# guest.tar has the images of the guest of hack/guest.sh, if there is one. No container engine is needed for any of that.
# Nothing is done if nothing has changed.
#
# The controller is one static program. The agent of a node loads libvirt's client library when it runs and calls
# qemu-img. The launcher runs libvirtd, QEMU with its firmware, and swtpm. These, and all they are linked with, are taken from
# the packages of this machine (Debian 12, as "make setup" installs them): the ones that the tests run with.
# usr/share/doc/virtloom/packages lists them.
#
# Two builds of one commit on machines with the same packages are the same, byte by byte.
source "$(dirname "$0")/lib.sh"
# What fails in $(...) ends the script, wherever it fails.
shopt -s inherit_errexit

multiarch=$(uname -m)-linux-gnu

# skeleton ROOT: libvirt's library looks up the name of its user, and its socket below /var/run.
skeleton() {
  mkdir -p "$1/etc" "$1/tmp" "$1/run" "$1/var" "$1/usr/share/doc/virtloom"
  ln -s ../run "$1/var/run"
  chmod 1777 "$1/tmp"
  printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$1/etc/nsswitch.conf"
}

# accounts ROOT USER... writes users NAME:ID:HOME, each with a group of its name, beside root.
accounts() {
  local root=$1 user name id home
  shift
  printf 'root:x:0:0:root:/:/sbin/nologin\n' >"$root/etc/passwd"
  printf 'root:x:0:\n' >"$root/etc/group"
  for user; do
    IFS=: read -r name id home <<<"$user"
    printf '%s:x:%s:%s:%s:%s:/sbin/nologin\n' "$name" "$id" "$id" "$name" "$home" >>"$root/etc/passwd"
    printf '%s:x:%s:\n' "$name" "$id" >>"$root/etc/group"
  done
}

# linked FILE... prints the libraries that the dynamic linker loads for the files, one path per line.
linked() { ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\// && $1 !~ /:$/ {print $1}' | sort -u; }

# library NAME prints where the dynamic linker finds it.
library() {
  local path
  path=$(ldconfig -p | awk -v n="$1" '$1 == n && !found {print $NF; found = 1}')
  [ -n "$path" ] || die "$1 is not installed: run make setup"
  printf '%s\n' "$path"
}

# program NAME prints its path.
program() { type -P "$1" || die "$1 is not installed: run make setup"; }

# origins FILE... prints each file with the package that it is from. Debian knows a file by its path before or after /usr was
# merged, so each is asked for as both; what is not found is not printed.
origins() {
  local file
  for file; do printf '%s\n' "$file" "/usr$file" "${file#/usr}"; done |
    { xargs dpkg -S 2>/dev/null || true; } | sed -n 's/^\([^ :,]*\)[^ ]*: \(\/.*\)$/\2 \1/p'
}

# take MODE ROOT FILE...: copies files to their paths, or what these link to, and notes their packages.
take() {
  local mode=$1 root=$2 file real name
  local -A origin=()
  shift 2
  while read -r file name; do origin[$file]=$name; done < <(origins "$@" $(realpath -- "$@"))
  for file; do
    real=$(realpath -- "$file")
    name=${origin[$real]:-${origin[/usr$real]:-${origin[${real#/usr}]:-}}}
    [ -n "$name" ] || die "$file belongs to no package, so its origin is unknown"
    install -D -m "$mode" "$real" "$root$file"
    printf '%s\n' "$name" >>"$root/packages"
  done
}

# documents ROOT: the packages that files were taken from, with their licences.
documents() {
  local name
  sort -u "$1/packages" | while read -r name; do
    dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' "$name" | head -n 1
    install -D -m 644 "/usr/share/doc/$name/copyright" "$1/usr/share/doc/$name/copyright"
  done >"$1/usr/share/doc/virtloom/packages"
  rm "$1/packages"
}

# client prints the libraries that the Go binding loads: all of them, whether guests need them or not.
client() { library libvirt.so.0; library libvirt-qemu.so.0; library libvirt-admin.so.0; }

node() {
  local root=$1 wanted
  accounts "$root" virtloom:65532:/
  wanted=$(client; program qemu-img)
  mapfile -t wanted <<<"$wanted"
  release_build "$root/usr/bin/refdaemon" -tags libvirt_dlopen
  take 755 "$root" "${wanted[@]}" $(linked "$root/usr/bin/refdaemon" "${wanted[@]}")
  documents "$root"
}

# launcher ROOT AGENT: the agent's program is the launcher's as well.
launcher() {
  local root=$1 wanted
  # QEMU's user is KubeVirt's 107, whose home is the Pod's volume for it; libvirt does not start without the name that it was built with.
  # swtpm's is tss.
  accounts "$root" qemu:107:/var/run/kubevirt-private libvirt-qemu:107:/var/run/kubevirt-private tss:102:/
  install -D -m 755 "$2" "$root/usr/bin/refdaemon"
  ln -s refdaemon "$root/usr/bin/virt-launcher"
  ln -s refdaemon "$root/usr/bin/virt-launcher-monitor"
  CGO_ENABLED=0 static_build "$root/usr/bin/container-disk" ./refdaemon/containerdisk
  CGO_ENABLED=0 static_build "$root/usr/bin/virt-tail" ./refdaemon/virttail
  CGO_ENABLED=0 static_build "$root/usr/bin/virt-probe" ./refdaemon/virtprobe
  wanted=$(client; emulation; modules)
  mapfile -t wanted <<<"$wanted"
  take 755 "$root" "${wanted[@]}" $(linked "$root/usr/bin/refdaemon" "${wanted[@]}")
  commands "$root"
  firmware "$root"
  configuration "$root"
  documents "$root"
}

# emulation prints the programs that run a guest, those that libvirtd and swtpm_setup call included.
emulation() {
  local name
  for name in libvirtd qemu-system-x86_64 qemu-img swtpm swtpm_ioctl swtpm_setup swtpm_localca swtpm_cert certtool passt passt.avx2; do program "$name"; done
}

# modules prints the parts that libvirtd and QEMU load when they need them.
modules() {
  # libvirtd: guests, secrets of encrypted disks, and the storage that a migration without shared disks makes.
  local at=/usr/lib/$multiarch name
  for name in qemu secret storage; do printf '%s\n' "$at/libvirt/connection-driver/libvirt_driver_$name.so"; done
  printf '%s\n' "$at/libvirt/storage-file/libvirt_storage_file_fs.so" "$at/libvirt/storage-backend/libvirt_storage_backend_fs.so"
  # QEMU: emulation without KVM, virtio's display, and devices of USB that are passed through or redirected.
  for name in accel-tcg-x86_64 hw-display-virtio-gpu hw-display-virtio-gpu-pci hw-display-virtio-vga hw-usb-host hw-usb-redirect; do
    printf '%s\n' "$at/qemu/$name.so"
  done
}

# commands ROOT: KubeVirt's Pods copy container-disk with cp, and start it in Pods of plugged volumes by a shell.
commands() {
  local cp sh
  cp=$(realpath "$(program cp)")
  sh=$(realpath "$(program dash)")
  take 755 "$1" "$cp" "$sh" $(linked "$cp" "$sh")
  mkdir -p "$1/bin" "$1/usr/bin"
  [ "$cp" = /usr/bin/cp ] || mv "$1$cp" "$1/usr/bin/cp"
  mv "$1$sh" "$1/bin/sh"
  ln -s sh "$1/bin/bash"
}

# firmware ROOT: BIOS and its extensions for displays and network cards, UEFI with and without enrolled keys, and what
# starts a kernel directly; libvirt's models of CPUs.
firmware() {
  local root=$1 at=/usr/share name files=()
  for name in kvmvapic.bin linuxboot_dma.bin multiboot_dma.bin pvh.bin; do files+=("$at/qemu/$name"); done
  for name in bios-256k vgabios-stdvga vgabios-virtio vgabios-bochs-display vgabios-cirrus vgabios-ramfb; do files+=("$at/seabios/$name.bin"); done
  for name in virtio e1000 e1000e rtl8139 ne2k_pci pcnet; do files+=("/usr/lib/ipxe/qemu/efi-$name.rom"); done
  for name in CODE_4M CODE_4M.secboot VARS_4M VARS_4M.ms; do files+=("$at/OVMF/OVMF_$name.fd"); done
  files+=("$at"/qemu/firmware/*.json "$at"/libvirt/cpu_map/*.xml)
  take 644 "$root" "${files[@]}"
  ln -s OVMF_CODE_4M.secboot.fd "$root$at/OVMF/OVMF_CODE_4M.ms.fd"
}

# configuration ROOT: of a launcher that is root. Any other writes its own, the same, into the Pod's volumes. The Pod confines
# QEMU already, and libvirt may not do so once more there; files have their owners from the node's agent.
configuration() {
  mkdir -p "$1/etc/libvirt"
  printf '%s\n' 'user = "qemu"' 'group = "qemu"' 'dynamic_ownership = 0' 'remember_owner = 0' 'namespaces = []' \
    'cgroup_controllers = []' 'security_driver = "none"' 'stdio_handler = "file"' >"$1/etc/libvirt/qemu.conf"
}

# static_build OUT PACKAGE builds a program that needs no other file.
static_build() { go build -trimpath -buildvcs=true -ldflags '-s -w -buildid=' -o "$1" "$2"; }

# texts ROOT: the licences of refdaemon's dependencies are distributed with it, and those of Debian's files.
texts() {
  install -D -m 644 LICENSE "$1/usr/share/doc/virtloom/LICENSE"
  go -C tools/release run ./licences -C "$root" -notices "$1/usr/share/doc/virtloom/THIRD-PARTY-LICENSES.txt"
}

# sources prints what the images are made from: the files of this repository, its commit, Debian's packages, the guest.
sources() {
  git rev-parse HEAD
  printf '%s\n' "$SOURCE_DATE_EPOCH" "$(go version)"
  git ls-files -co --exclude-standard -z -- '*.go' go.mod go.sum LICENSE hack refdaemon tools/release ':!*_test.go' ':!*.md' |
    xargs -0 sha256sum 2>/dev/null || true
  dpkg-query -W
  cat "$bin/guest/stamp" 2>/dev/null || true
}

# guest TO makes the archive of the guest's images.
guest() { [ ! -e "$bin/guest/oci" ] || go run ./hack/ociimages -layout "$bin/guest/oci" -archive "$1/guest.tar"; }

main() {
  local to=${1:-bin/images} name state
  SOURCE_DATE_EPOCH=$(epoch)
  export SOURCE_DATE_EPOCH
  state=$(sources | sha256sum | cut -d ' ' -f 1)
  if [ "$(cat "$to/stamp" 2>/dev/null)" = "$state" ]; then
    say "images: up to date in $to"
    return
  fi
  for name in controller node launcher; do
    rm -rf "${to:?}/$name" "$to/oci" "$to/stamp" "$to/$name.tar"
    mkdir -p "$to/$name"
    skeleton "$to/$name"
  done
  to=$(realpath "$to")
  accounts "$to/controller" virtloom:65532:/
  CGO_ENABLED=0 release_build "$to/controller/usr/bin/refdaemon"
  CGO_ENABLED=1 node "$to/node"
  launcher "$to/launcher" "$to/node/usr/bin/refdaemon"
  for name in controller node launcher; do
    texts "$to/$name"
    find "$to/$name" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  done
  go run ./hack/ociimages -f refdaemon/Containerfile -layout "$to/oci" -archives "$to" \
    -label org.opencontainers.image.revision="$(git rev-parse HEAD)" -label org.opencontainers.image.version="$(version)" "$to"
  guest "$to"
  hack/image-verify.sh "$to"
  for name in controller node launcher; do
    say "$to/$name: $(du -sh "$to/$name" | cut -f 1), packed $(du -h "$to/$name.tar" | cut -f 1)"
  done
  printf '%s\n' "$state" >"$to/stamp"
}

# version is the release that the commit is, or comes after.
version() { git describe --tags --always --dirty; }

main "$@"
