#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the guest that the demo and the tests run: a kernel of Debian's cloud image and a small
# initramfs around busybox. Run it from anywhere; the result is in bin/guest:
#
#   vmlinuz  the kernel as Debian ships it, which UEFI firmware can start
#   vmlinux  the same, unpacked: an emulated guest takes more than a second for that
#   initrd   the initramfs; hack/guest/init says what it does
#   initrd-agent
#            the same with QEMU's guest agent and more drivers, see hack/guest/agent
#   disk.img a disk from which the guest starts by itself, at a BIOS
#   oci      an OCI image layout with the images that a VirtualMachineInstance can name,
#            see hack/guest/ociimage
#
# It needs apt-get and dpkg-deb (nothing is installed), busybox-static, cpio and lz4. A second run does
# nothing unless what it is made from (this script, hack/guest, Debian's kernel and guest agent,
# busybox) has changed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/bin/guest
say() { printf 'guest: %s\n' "$*"; }
fail() {
  printf 'guest: %s\n' "$*" >&2
  exit 1
}

# kernel_package is the package that linux-image-cloud-amd64 stands for today, with its version.
kernel_package() {
  apt-cache depends linux-image-cloud-amd64 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1
}
version() { apt-cache policy "$1" | sed -n 's/^ *Candidate: //p'; }
agent=qemu-guest-agent
loader="grub-pc-bin grub-common"

sources() { find "$root/hack/guest.sh" "$root/hack/guest" -type f | LC_ALL=C sort; }

package=$(kernel_package)
if [ -z "$package" ] && [ ! -e "$out/stamp" ]; then
  fail "apt knows no linux-image-cloud-amd64; run 'apt-get update' as root first (Debian 12 is what this is made for)"
fi
busybox=$(command -v busybox) || fail "busybox is missing; install the Debian package busybox-static"
code=$( (sources | xargs sha256sum; sha256sum "$busybox") | sed "s|$root||" | sha256sum | cut -d ' ' -f 1)
if [ -n "$package" ]; then
  stamp="$package $(version "$package") $(version "$agent") $(version grub-common) $code"
else
  # Without package lists the kernel that is there has to do.
  stamp="$(cut -d ' ' -f 1-4 "$out/stamp") $code"
fi
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
  say "up to date in bin/guest"
  exit 0
fi
[ -n "$package" ] || fail "the guest has to be rebuilt, but apt has no package lists; run 'apt-get update' as root"

for program in apt-get dpkg-deb cpio lz4 go; do
  command -v "$program" >/dev/null || fail "$program is missing; 'make setup' installs it"
done
if ldd "$busybox" >/dev/null 2>&1; then
  fail "$busybox is linked dynamically; install the Debian package busybox-static"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
mkdir -p "$out"

say "downloading $package, $agent and $loader"
# apt drops its privileges for the download, so the folder has to be open to all.
chmod 755 "$work"
mkdir -m 777 "$work/deb"
# shellcheck disable=SC2086 # names are words
(cd "$work/deb" && apt-get -qq download "$package" "$agent" $loader) || fail "cannot download $package, $agent and $loader"
say "unpacking the kernel"
dpkg-deb --fsys-tarfile "$work"/deb/linux-image-*.deb | tar -x -C "$work" ./boot ./lib/modules
dpkg-deb --fsys-tarfile "$work/deb/$agent"_*.deb | tar -x -C "$work" ./usr/sbin/qemu-ga
for part in $loader; do
  dpkg-deb --fsys-tarfile "$work/deb/$part"_*.deb | tar -x -C "$work"
done
cp "$work"/boot/vmlinuz-* "$work/vmlinuz"
# number OFFSET TYPE prints a number of the kernel's header, which Linux' Documentation/arch/x86/boot.rst describes.
number() { od -A n -j "$1" -N "${2#u}" -t "$2" "$work/vmlinuz" | tr -d ' '; }
begin=$((($(number 497 u1) + 1) * 512 + $(number 584 u4)))
# The last four bytes say how large it is unpacked.
tail -c "+$((begin + 1))" "$work/vmlinuz" | head -c "$(($(number 588 u4) - 4))" | lz4 -dc >"$work/vmlinux" ||
  fail "the kernel of $package is not packed with lz4"

# pack TREE prints an archive of a tree. It is not compressed: under emulation the guest would take
# longer to unpack it than QEMU to read it.
pack() {
  find "$1" -exec touch -h -d @0 {} +
  (cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc --reproducible --owner=0:0 --quiet)
}
# modules TREE copies the kernel's modules into a tree: those for initrd-agent, or all others.
modules() {
  mkdir -p "$1/modules"
  while read -r module when; do
    case $module in '' | '#'*) continue ;; esac
    if [ "$when" = agent ]; then owner=$work/more; else owner=$work/tree; fi
    [ "$owner" = "$1" ] || continue
    cp "$work"/lib/modules/*/kernel/"$module.ko" "$1/modules/"
    echo "${module##*/}" >>"$1/modules/$when"
  done <"$root/hack/guest/modules"
}

say "packing the initramfs"
tree=$work/tree
mkdir -p "$tree/bin" "$tree/sbin" "$tree/etc/acpi/PWRF" "$tree/proc" "$tree/sys" "$tree/dev" "$tree/mnt" "$tree/run" "$tree/tmp" "$tree/www/cgi-bin"
cp "$busybox" "$tree/bin/busybox"
for applet in $("$busybox" --list); do
  [ "$applet" = busybox ] || ln -s busybox "$tree/bin/$applet"
done
modules "$tree"
cp "$root/hack/guest/init" "$tree/init"
cp "$root/hack/guest/powerbutton" "$tree/etc/acpi/PWRF/00000080"
cp "$root/hack/guest/dhcp" "$tree/bin/dhcp"
cp "$root/hack/guest/cpu" "$root/hack/guest/disk" "$tree/bin/"
cp "$root/hack/guest/index.cgi" "$tree/www/cgi-bin/index.cgi"
chmod 755 "$tree/init" "$tree/etc/acpi/PWRF/00000080" "$tree/bin/dhcp" "$tree/bin/cpu" "$tree/bin/disk" "$tree/www/cgi-bin/index.cgi"
printf 'root:x:0:0:root:/:/bin/sh\n' >"$tree/etc/passwd"
printf 'root:x:0:\n' >"$tree/etc/group"
pack "$tree" >"$work/initrd"

say "packing the initramfs with the guest agent"
more=$work/more
mkdir -p "$more/sbin" "$more/var" "$more/etc"
modules "$more"
cp "$root/hack/guest/agent" "$more/agent"
cp "$root/hack/guest/shutdown" "$more/sbin/shutdown"
cp "$work/usr/sbin/qemu-ga" "$more/sbin/qemu-ga"
for library in $(ldd "$more/sbin/qemu-ga" | grep -o '/[^ ]*\.so[^ ]*'); do
  mkdir -p "$more${library%/*}"
  cp -L "$library" "$more$library"
done
if ldd "$more/sbin/qemu-ga" | grep 'not found'; then
  fail "the guest agent lacks the libraries above; 'make setup' installs QEMU, which has them too"
fi
ln -s ../run "$more/var/run"
printf 'ID=virtloom\nNAME="virtloom guest"\nPRETTY_NAME="virtloom guest 1"\nVERSION_ID=1\n' >"$more/etc/os-release"
chmod 755 "$more/sbin/shutdown" "$more/sbin/qemu-ga"
# The kernel unpacks archives one after the other.
pack "$more" | cat "$work/initrd" - >"$work/initrd-agent"

say "writing the disk"
grub=$work/usr/lib/grub/i386-pc
cat >"$work/grub.cfg" <<'X'
set root=(hd0,msdos1)
linux /vmlinuz console=ttyS0 quiet no_timer_check hb=0.1 dhcp=1 serve=8080
initrd /initrd
boot
X
"$work/usr/bin/grub-mkimage" -d "$grub" -O i386-pc -c "$work/grub.cfg" -p / -o "$work/core.img" biosdisk part_msdos tar linux boot ||
  fail "the boot loader could not be made; 'make setup' installs the libraries that it needs"
# The partition is an archive, which the boot loader reads as a file system.
tar -C "$work" --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644 -cf "$work/partition" vmlinuz initrd
# bytes NUMBER prints a number as the table of partitions has it, four bytes, the lowest first.
bytes() { for shift in 0 8 16 24; do printf '%b' "\\0$(printf %03o $(($1 >> shift & 255)))"; done; }
begin=2048
[ "$(wc -c <"$work/core.img")" -lt $(((begin - 1) * 512)) ] || fail "the boot loader does not fit before the partition"
{
  head -c 446 "$grub/boot.img"
  printf '\200\376\377\377\332\376\377\377'
  bytes $begin
  bytes $((($(wc -c <"$work/partition") + 511) / 512))
  head -c 48 /dev/zero
  printf '\125\252'
  cat "$work/core.img"
} >"$work/disk.img"
dd if="$work/partition" of="$work/disk.img" bs=512 seek=$begin conv=sparse,notrunc 2>/dev/null
truncate -s %1M "$work/disk.img"

say "writing the OCI images"
rm -rf "$out/stamp" "$out/oci"
for file in vmlinuz vmlinux initrd initrd-agent disk.img; do
  chmod 644 "$work/$file"
  mv "$work/$file" "$out/$file"
done
(cd "$root" && go run ./hack/guest/ociimage -kernel "$out/vmlinux" -initrd "$out/initrd" -disk "$out/disk.img" -layout "$out/oci")

printf '%s\n' "$stamp" >"$out/stamp"
say "done: $(du -sh "$out" | cut -f 1) in bin/guest"
