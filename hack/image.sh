#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the build context of refdaemon/Containerfile: controller/ and node/ below the given directory, by default
# bin/images, each a complete file system and nothing more than its program needs. Then makes the images, in oci/ beside them: a
# layout as the OCI defines it, which "skopeo copy oci:bin/images/oci:localhost/virtloom-node:dev ..." and others take. No
# container engine is needed for any of that.
#
# The controller is one static program. The agent of a node loads libvirt's client library when it runs and calls
# qemu-img; these, and all they are linked with, are taken from the packages of this machine (Debian 12, as "make setup"
# installs them): the ones that the tests run with. usr/share/doc/virtloom/packages lists them.
#
# Two builds of one commit on machines with the same packages are the same, byte by byte.
source "$(dirname "$0")/lib.sh"

# accounts ROOT: libvirt's library looks up the name of its user, and its socket below /var/run.
accounts() {
  mkdir -p "$1/etc" "$1/tmp" "$1/run" "$1/var"
  ln -s ../run "$1/var/run"
  chmod 1777 "$1/tmp"
  printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' 'virtloom:x:65532:65532:virtloom:/:/sbin/nologin' >"$1/etc/passwd"
  printf '%s\n' 'root:x:0:' 'virtloom:x:65532:' >"$1/etc/group"
  printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$1/etc/nsswitch.conf"
}

# linked FILE... prints the libraries that the dynamic linker loads for the files, one path per line.
linked() { ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\// && $1 !~ /:$/ {print $1}' | sort -u; }

# library NAME prints where the dynamic linker finds it.
library() {
  local path
  path=$(ldconfig -p | awk -v n="$1" '$1 == n {print $NF; exit}')
  [ -n "$path" ] || die "$1 is not installed: run make setup"
  printf '%s\n' "$path"
}

# package FILE prints the package that the file is from. Debian knows it by its path before or after /usr was merged.
package() { { dpkg -S "$1" || dpkg -S "/usr$1" || dpkg -S "${1#/usr}"; } 2>/dev/null | head -n 1 | cut -d : -f 1; }

# take ROOT FILE: copies a file to its path, and notes its package.
take() {
  local name
  name=$(package "$(realpath "$2")")
  [ -n "$name" ] || die "$2 belongs to no package, so its origin is unknown"
  install -D -m 755 "$(realpath "$2")" "$1$2"
  dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' "$name" | head -n 1 >>"$1/packages"
  install -D -m 644 "/usr/share/doc/$name/copyright" "$1/usr/share/doc/$name/copyright"
}

node() {
  local root=$1 file wanted
  # The Go binding loads the first three: all of them, whether guests need them or not.
  wanted=("$(library libvirt.so.0)" "$(library libvirt-qemu.so.0)" "$(library libvirt-admin.so.0)" "$(type -P qemu-img || true)")
  [ -n "${wanted[3]}" ] || die "qemu-img is not installed: run make setup"
  release_build "$root/usr/bin/refdaemon" -tags libvirt_dlopen
  for file in "${wanted[@]}" $(linked "$root/usr/bin/refdaemon" "${wanted[@]}"); do
    take "$root" "$file"
  done
  mkdir -p "$root/usr/share/doc/virtloom"
  sort -u "$root/packages" >"$root/usr/share/doc/virtloom/packages"
  rm "$root/packages"
}

# texts ROOT: the licences of refdaemon's dependencies are distributed with it, and those of Debian's files.
texts() {
  install -D -m 644 LICENSE "$1/usr/share/doc/virtloom/LICENSE"
  go -C tools/release run ./licences -C "$root" -notices "$1/usr/share/doc/virtloom/THIRD-PARTY-LICENSES.txt"
}

main() {
  local to=${1:-bin/images} name
  SOURCE_DATE_EPOCH=$(epoch)
  export SOURCE_DATE_EPOCH
  for name in controller node oci; do
    rm -rf "${to:?}/$name"
  done
  mkdir -p "$to/controller" "$to/node"
  to=$(realpath "$to")
  accounts "$to/controller"
  accounts "$to/node"
  CGO_ENABLED=0 release_build "$to/controller/usr/bin/refdaemon"
  CGO_ENABLED=1 node "$to/node"
  for name in controller node; do
    texts "$to/$name"
    find "$to/$name" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    say "$to/$name: $(du -sh "$to/$name" | cut -f 1)"
  done
  go run ./hack/ociimages -f refdaemon/Containerfile -layout "$to/oci" "$to"
  hack/image-verify.sh "$to"
}

main "$@"
