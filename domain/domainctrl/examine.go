// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// finding is what an image can do. It is looked up once in the life of a guest, for
// settings of its QEMU process follow from it: an image that fills up while the guest
// runs must not ask for others.
type finding struct {
	Path         string             `json:"path"`
	DirectIO     bool               `json:"directIO"`
	Preallocated bool               `json:"preallocated"`
	Sector       *domain.SectorSize `json:"sector,omitempty"`
}

// found is the file with the findings about a volume.
func (v volume) found() string { return v.file(".found") }

// examine completes what is known about an image and those below it.
func (v volume) examine(ctx context.Context, src *domain.DiskSource) error {
	before, known := v.findings(), true
	var after []finding
	for at := src; at != nil; at = at.Backing {
		f, seen := before[at.Path]
		if !seen {
			f, known = look(ctx, at), false
		}
		at.DirectIO, at.Preallocated, at.Sector = f.DirectIO, f.Preallocated, f.Sector
		after = append(after, f)
	}
	if err := ctx.Err(); err != nil || known {
		return err
	}
	if err := v.note(after); err != nil {
		return fmt.Errorf("domainctrl: note what volume %s can do: %w", v.Name, err)
	}
	return nil
}

// findings are those of before by path; none if they cannot be read, and are looked
// up again.
func (v volume) findings() map[string]finding {
	out := map[string]finding{}
	b, err := os.ReadFile(v.found())
	var all []finding
	if err != nil || json.Unmarshal(b, &all) != nil {
		return out
	}
	for _, f := range all {
		out[f.Path] = f
	}
	return out
}

// note stores findings as a whole or not at all.
func (v volume) note(all []finding) error {
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	tmp := v.found() + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, v.found())
}

// look finds out what an image can do. What cannot be found out it cannot do.
func look(ctx context.Context, src *domain.DiskSource) finding {
	out := finding{Path: src.Path}
	f, err := openSource(src)
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

// openSource opens an image or a device. Only what a launcher's Pod has in its folders has
// another path inside.
func openSource(src *domain.DiskSource) (*os.File, error) {
	if src.Block {
		return openDevice(src.Path, src.Inside != "")
	}
	return openDisk(src.Path)
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

// isAllocated tells whether an image takes all the space it may need.
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

// fileSectors are the block size of the file system, which knows no other; nil if it
// cannot be asked.
func fileSectors(f *os.File) *domain.SectorSize {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Bsize <= 0 {
		return nil
	}
	n := uint(st.Bsize)
	return &domain.SectorSize{Logical: n, Physical: n, DiscardGranularity: n}
}

// deviceSectors are the block sizes of a device; nil if it cannot be asked.
func deviceSectors(fd int) *domain.SectorSize {
	logical, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return nil
	}
	physical, err := unix.IoctlGetUint32(fd, unix.BLKPBSZGET)
	if err != nil {
		return nil
	}
	return &domain.SectorSize{Logical: uint(logical), Physical: uint(physical), DiscardGranularity: discardGranularity(fd)}
}

// discardGranularity is what the kernel says about the device, or about the disk it
// is a partition of; 0 if it says nothing.
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
