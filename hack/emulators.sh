#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts the emulators of other architectures than the machine's own into bin/emulators, for tests that
# define guests of all architectures: qemu-system-aarch64 and qemu-system-s390x. They are taken out of
# Debian's packages, which are not installed: one of them brings some twenty emulators, and every
# libvirt on the machine would ask each of them what it can do. What they are linked with comes with
# qemu-system-x86. A second run does nothing unless Debian has newer packages.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/bin/emulators
say() { printf 'emulators: %s\n' "$*"; }
fail() {
  printf 'emulators: %s\n' "$*" >&2
  exit 1
}

packages="qemu-system-arm qemu-system-misc"
programs="qemu-system-aarch64 qemu-system-s390x"

# versions prints a line for each package that apt knows.
versions() {
  for package in $packages; do
    version=$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: //p')
    case $version in '' | '(none)') ;; *) echo "$package $version" ;; esac
  done
}

code=$(sha256sum <"$0" | cut -d ' ' -f 1)
known=$(versions)
if [ "$(printf '%s\n' "$known" | grep -c .)" -ne 2 ]; then
  # Without package lists the emulators that are there have to do.
  if [ "$(tail -n 1 "$out/stamp" 2>/dev/null)" = "$code" ]; then
    say "up to date in bin/emulators"
    exit 0
  fi
  fail "apt does not know $packages; run 'apt-get update' as root first (Debian 12 is what this is made for)"
fi
stamp=$(printf '%s\n%s' "$known" "$code")
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
  say "up to date in bin/emulators"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
# apt drops its privileges for the download, so the folder has to be open to all.
chmod 755 "$work"
mkdir -m 777 "$work/deb"
say "downloading $packages"
# shellcheck disable=SC2086 # names are words
(cd "$work/deb" && apt-get -qq download $packages) || fail "cannot download $packages"
for deb in "$work"/deb/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" --wildcards './usr/bin/qemu-system-*'
done
mkdir -p "$out"
rm -f "$out/stamp"
for program in $programs; do
  file=$work/usr/bin/$program
  [ -x "$file" ] || fail "$program is not in $packages"
  if ldd "$file" | grep 'not found'; then
    fail "$program lacks the libraries above; install qemu-system-x86 of the same release"
  fi
  # A libvirt that runs may be using the old one.
  install -m 755 "$file" "$out/.$program.new"
  mv "$out/.$program.new" "$out/$program"
done
printf '%s\n' "$stamp" >"$out/stamp"
say "done: $(du -sh "$out" | cut -f 1) in bin/emulators"
