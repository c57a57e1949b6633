// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/status"
)

const (
	// ChecksumPiece is how many bytes of a file [Workspace.Checksums] reads at once.
	ChecksumPiece = 1 << 20
	// maxSummed bounds a file with a checksum: its size may be a tenant's choice that costs the tenant nothing.
	maxSummed = 64 << 30
)

// Checksums reads the files that the VMI has from images, and returns their checksums. It waits for
// pace before each piece of at most [ChecksumPiece] bytes. A file that cannot be read, is too large or changes meanwhile has none;
// the error says why.
func (w *Workspace) Checksums(ctx context.Context, vmi *v1.VirtualMachineInstance, f convert.Facts, pace func(ctx context.Context, bytes int) error) (status.Checksums, error) {
	out := status.Checksums{Disks: map[string]uint32{}}
	var errs []error
	sum := func(what string, open func() (*os.File, error)) uint32 {
		file, err := open()
		if err == nil {
			var n uint32
			n, err = checksum(ctx, file, pace)
			if err = errors.Join(err, file.Close()); err == nil {
				return n
			}
		}
		errs = append(errs, fmt.Errorf("workspace: checksum of %s of VMI %s/%s: %w", what, vmi.Namespace, vmi.Name, err))
		return 0
	}
	for i := range vmi.Spec.Volumes {
		v := volume{vmi: vmi, index: i, Volume: &vmi.Spec.Volumes[i], dir: w.Dir(vmi.UID), pods: w.Pods}
		if base := f.Disks[v.Name].Backing; v.ContainerDisk != nil && base != nil {
			out.Disks[v.Name] = sum("volume "+v.Name, func() (*os.File, error) { return v.open(ctx, base) })
		}
	}
	if fw := vmi.Spec.Domain.Firmware; fw != nil && fw.KernelBoot != nil && fw.KernelBoot.Container != nil {
		c := fw.KernelBoot.Container
		if c.KernelPath != "" {
			out.Kernel = sum("the kernel", func() (*os.File, error) { return w.bootFiles(vmi).open(ctx, c.KernelPath, "kernel") })
		}
		if c.InitrdPath != "" {
			out.Initrd = sum("the initrd", func() (*os.File, error) { return w.bootFiles(vmi).open(ctx, c.InitrdPath, "initrd") })
		}
	}
	return out, errors.Join(errs...)
}

var (
	errTooLargeToSum = fmt.Errorf("larger than %d GiB", maxSummed>>30)
	errChanged       = errors.New("the file changed while it was read")
)

// checksum reads a regular file to its end, as it is when it begins.
func checksum(ctx context.Context, f *os.File, pace func(ctx context.Context, bytes int) error) (uint32, error) {
	var before, after unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &before); err != nil {
		return 0, err
	}
	switch {
	case before.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, errNotRegular
	case before.Size > maxSummed:
		return 0, errTooLargeToSum
	}
	sum, piece := crc32.NewIEEE(), make([]byte, min(before.Size, ChecksumPiece))
	for at := int64(0); at < before.Size; at += int64(len(piece)) {
		piece = piece[:min(before.Size-at, ChecksumPiece)]
		if err := pace(ctx, len(piece)); err != nil {
			return 0, err
		}
		if _, err := f.ReadAt(piece, at); errors.Is(err, io.EOF) {
			return 0, errChanged
		} else if err != nil {
			return 0, err
		}
		if _, err := sum.Write(piece); err != nil {
			return 0, err
		}
	}
	if err := unix.Fstat(int(f.Fd()), &after); err != nil {
		return 0, err
	}
	if after.Size != before.Size || after.Mtim != before.Mtim {
		return 0, errChanged
	}
	return sum.Sum32(), nil
}
