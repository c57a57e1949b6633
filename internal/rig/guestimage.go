// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os"
	"path/filepath"
)

// Images in the OCI layout of GuestImage.
const (
	// KernelImage has /boot/vmlinux and /boot/initrd, for a VirtualMachineInstance with kernelBoot.
	KernelImage = "virtloom.test/guest-kernel:1"
	// DiskImage has /disk/disk.img, 16 MiB of zeros after a line of text, for a containerDisk.
	DiskImage = "virtloom.test/guest-disk:1"
)

// GuestImage is the guest that "make setup" builds (hack/guest.sh): a Debian kernel with a small
// initramfs. It needs 96 MiB of memory; hack/guest/init describes what it prints on the serial console
// and which words of the kernel command line it understands, such as "console=ttyS0 hb=1".
type GuestImage struct {
	// Kernel and Initrd are files for the direct boot of a domain by BIOS, KernelUEFI is the kernel for one that
	// boots by UEFI.
	Kernel, KernelUEFI, Initrd string
	// AgentInitrd is an initrd with QEMU's guest agent and drivers for whatever can be plugged into a
	// running guest; it needs 128 MiB of memory.
	AgentInitrd string
	// Layout is an OCI image layout with KernelImage and DiskImage, by their
	// org.opencontainers.image.ref.name annotations.
	Layout string
}

// FindGuestImage finds the guest in the folder guest of BinDir. If it is not there the error is
// ErrNoPrograms.
func FindGuestImage() (GuestImage, error) {
	bin, err := BinDir()
	if err != nil {
		return GuestImage{}, err
	}
	dir := filepath.Join(bin, "guest")
	g := GuestImage{
		Kernel:      filepath.Join(dir, "vmlinux"),
		KernelUEFI:  filepath.Join(dir, "vmlinuz"),
		Initrd:      filepath.Join(dir, "initrd"),
		AgentInitrd: filepath.Join(dir, "initrd-agent"),
		Layout:      filepath.Join(dir, "oci"),
	}
	// The stamp is written last.
	for _, path := range []string{g.Kernel, g.KernelUEFI, g.Initrd, g.AgentInitrd, g.Layout, filepath.Join(dir, "stamp")} {
		if _, err := os.Stat(path); err != nil {
			return GuestImage{}, fmt.Errorf("%w (no guest image: %w)", ErrNoPrograms, err)
		}
	}
	return g, nil
}
