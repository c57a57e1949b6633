// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/convert"
)

// finding holds the capabilities of an image. They are examined once in the life of a VMI, because
// settings of its QEMU process follow from them: an image that fills up while the guest runs must
// not change them.
type finding struct {
	Path         string              `json:"path"`
	DirectIO     bool                `json:"directIO"`
	Preallocated bool                `json:"preallocated"`
	Sector       *convert.SectorSize `json:"sector,omitempty"`
}

// findings is the file with the findings about a volume.
type findings string

// found returns the file with the findings about the volume.
func (v volume) found() findings { return findings(v.file(".found")) }

// examine completes what is known about an image and its backing images.
func (v volume) examine(ctx context.Context, src *convert.DiskSource) error {
	before, known := v.found().read(), true
	var after []finding
	for at := src; at != nil; at = at.Backing {
		f, seen := before[at.Path]
		if !seen {
			f, known = v.look(ctx, at), false
		}
		at.DirectIO, at.Preallocated, at.Sector = f.DirectIO, f.Preallocated, f.Sector
		after = append(after, f)
	}
	if err := ctx.Err(); err != nil || known {
		return err
	}
	if err := v.found().store(after); err != nil {
		return fmt.Errorf("workspace: store the capabilities of volume %s: %w", v.Name, err)
	}
	return nil
}

// read returns the stored findings by path; none if they cannot be read, which examines the images
// again.
func (at findings) read() map[string]finding {
	out := map[string]finding{}
	b, err := os.ReadFile(string(at))
	var all []finding
	if err != nil || json.Unmarshal(b, &all) != nil {
		return out
	}
	for _, f := range all {
		out[f.Path] = f
	}
	return out
}

// store stores findings as a whole or not at all.
func (at findings) store(all []finding) error {
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	tmp := string(at) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, string(at))
}

// look examines an image. A capability that cannot be examined counts as missing.
func (v volume) look(ctx context.Context, src *convert.DiskSource) finding {
	out := finding{Path: src.Path}
	f, err := v.open(ctx, src)
	if err != nil {
		return out
	}
	defer f.Close()
	out.DirectIO = opensDirectly(f)
	if src.Block {
		out.Sector = deviceSectors(int(f.Fd()))
		return out
	}
	out.Sector = fileSectors(f)
	out.Preallocated = isAllocated(ctx, f, src.Format)
	return out
}

// opensDirectly tries O_DIRECT, which some file systems refuse.
func opensDirectly(f *os.File) bool {
	fd, err := unix.Open(itself(f), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// blockUnit is the unit of st_blocks, whatever the file system (stat(2)).
const blockUnit = 512

// isAllocated reports whether an image has allocated all the space it may need.
func isAllocated(ctx context.Context, f *os.File, format string) bool {
	if format == "qcow2" {
		info, err := qemuImgInfo(ctx, f, format)
		return err == nil && info.VirtualSize <= info.ActualSize
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false
	}
	return st.Size > 0 && st.Size <= st.Blocks*blockUnit
}

// fileSectors returns the block size of the file system as both sizes; nil if it cannot be queried.
func fileSectors(f *os.File) *convert.SectorSize {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Bsize <= 0 {
		return nil
	}
	n := uint(st.Bsize)
	return &convert.SectorSize{Logical: n, Physical: n, DiscardGranularity: n}
}

// deviceSectors returns the block sizes of a device; nil if they cannot be queried.
func deviceSectors(fd int) *convert.SectorSize {
	logical, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return nil
	}
	physical, err := unix.IoctlGetUint32(fd, unix.BLKPBSZGET)
	if err != nil {
		return nil
	}
	return &convert.SectorSize{Logical: uint(logical), Physical: uint(physical), DiscardGranularity: discardGranularity(fd)}
}

// discardGranularity returns the granularity that the kernel reports for the device, or for the
// disk it is a partition of; 0 if none.
func discardGranularity(fd int) uint {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	for _, queue := range []string{"queue", "../queue"} {
		b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/%s/discard_granularity", unix.Major(st.Rdev), unix.Minor(st.Rdev), queue))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			return uint(n)
		}
	}
	return 0
}
