// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
)

// mebibyte is the unit in which disks grow.
const mebibyte = 1 << 20

// grow makes the disk of a claim as large as the claim allows by now, and returns its size to be:
// it never becomes smaller. The image itself is changed only before the first start of the domain
// on this node; the disk of a running domain is for the hypervisor to resize. A disk that others
// may have open is left alone.
func (v volume) grow(ctx context.Context, field string, src *convert.DiskSource, capacity int64) (int64, error) {
	disk, err := v.open(ctx, src)
	if err != nil {
		return 0, v.fault(field, "cannot inspect the disk", "check its directory on the node", err)
	}
	defer disk.Close()
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(int(disk.Fd()), &st); err != nil {
		return 0, v.fault(field, "cannot inspect the disk", "check its directory on the node", err)
	}
	if err := unix.Fstatfs(int(disk.Fd()), &fs); err != nil {
		return 0, v.fault(field, "cannot inspect the file system of the disk", "check its directory on the node", err)
	}
	room := int64(math.MaxInt64)
	if free := uint64(fs.Bavail) * uint64(fs.Bsize); free < math.MaxInt64-uint64(st.Blocks)*blockUnit { //nolint:unconvert // other widths on other architectures
		room = int64(free) + st.Blocks*blockUnit
	}
	bytes := usable(v.claimInfo(), min(capacity, room))
	if bytes <= st.Size {
		return st.Size, nil
	}
	if v.started() || v.shareable() {
		return bytes, nil
	}
	args := []string{"resize", "-q", "-f", "raw"}
	if info := v.claimInfo(); info != nil && info.Preallocated {
		args = append(args, "--preallocation=falloc")
	}
	if _, err := qemuImg(ctx, disk, append(args, inherited, strconv.FormatInt(bytes, 10))...); err != nil {
		return 0, v.fault(field, fmt.Sprintf("cannot grow the disk to %d bytes", bytes), "check the space on the node, and that nothing else uses the disk", err)
	}
	return bytes, nil
}

// started reports whether the domain may run already, here or elsewhere. The volume's capabilities
// are stored before the domain starts, so stored ones are of an earlier pass.
func (v volume) started() bool {
	waiting := []v1.VirtualMachineInstancePhase{v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled}
	return !slices.Contains(waiting, v.vmi.Status.Phase) || exists(string(v.found()))
}

// shareable reports whether the VMI shares the disk with others.
func (v volume) shareable() bool {
	return slices.ContainsFunc(v.vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == v.Name && isSet(d.Shareable) })
}

// claimInfo returns the status of the volume's claim; nil if there is none.
func (v volume) claimInfo() *v1.PersistentVolumeClaimInfo {
	for i := range v.vmi.Status.VolumeStatus {
		if s := &v.vmi.Status.VolumeStatus[i]; s.Name == v.Name {
			return s.PersistentVolumeClaimInfo
		}
	}
	return nil
}

// usable returns how many of so many bytes a disk on a claim may take: all but the file system's overhead
// (status.volumeStatus, filesystemOverhead), in whole mebibytes.
func usable(claim *v1.PersistentVolumeClaimInfo, bytes int64) int64 {
	const whole = 1000 // the overhead has three digits at most
	if claim != nil && claim.FilesystemOverhead != nil {
		// The API server checks the form; a malformed overhead counts as zero.
		if f, err := strconv.ParseFloat(string(*claim.FilesystemOverhead), 64); err == nil && f >= 0 && f <= 1 {
			keep := int64(math.Round((1 - f) * whole))
			bytes = bytes/whole*keep + bytes%whole*keep/whole
		}
	}
	if bytes < mebibyte {
		return bytes
	}
	return bytes - bytes%mebibyte
}
