// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

func write(t *testing.T, path string, bytes []byte) string {
	t.Helper()
	if err := os.WriteFile(path, bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// blank makes a disk of n bytes without any block.
func blank(t *testing.T, path string, n int64) string {
	t.Helper()
	write(t, path, nil)
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExamine_OncePerVMI(t *testing.T) {
	w, path := newWorkspace(t), filepath.Join(t.TempDir(), "d.img")
	blank(t, path, 1<<20)
	of := func(vmi *v1.VirtualMachineInstance) convert.DiskSource { return prepare(t, w, vmi).Disks["host"] }
	disk := hostDisk(path, v1.HostDiskExists)
	if d := of(guest("uid-1", disk)); d.Preallocated {
		t.Fatal("a sparse file counts as preallocated")
	}
	write(t, path, bytes.Repeat([]byte{1}, 1<<20))
	if d := of(guest("uid-1", disk)); d.Preallocated {
		t.Error("the guest has filled its disk, and other settings follow from that")
	}
	d := of(guest("uid-2", disk))
	if !d.Preallocated {
		t.Error("a full file does not count as preallocated")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	n := uint(fs.Bsize)
	if want := (convert.SectorSize{Logical: n, Physical: n, DiscardGranularity: n}); d.Sector == nil || *d.Sector != want {
		t.Errorf("block sizes %+v, want %+v", d.Sector, want)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if d.DirectIO != (err == nil) {
		t.Errorf("O_DIRECT is %t, opening says %v", d.DirectIO, err)
	}
	_ = unix.Close(fd)
	// Findings that cannot be read are no error.
	write(t, filepath.Join(w.Dir("uid-1"), "volume-host.found"), []byte("{"))
	if d := of(guest("uid-1", disk)); !d.Preallocated {
		t.Error("a broken note was believed")
	}
}

func TestExamine_NoDirectIO(t *testing.T) {
	const path = "/proc/self/maps" // no file system supports O_DIRECT less
	if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0); err == nil {
		_ = unix.Close(fd)
		t.Fatalf("%s can be opened with O_DIRECT", path)
	}
	if d := prepare(t, newWorkspace(t), guest("uid-1", hostDisk(path, v1.HostDiskExists))).Disks["host"]; d.DirectIO {
		t.Error("O_DIRECT counts as possible")
	}
}

func TestExamine_BackingImages(t *testing.T) {
	needQemuImg(t)
	w, dir := newWorkspace(t), t.TempDir()
	path := write(t, filepath.Join(dir, "disk.img"), bytes.Repeat([]byte{1}, 1<<20))
	w.Claims = claims{"golden": {Path: dir}}
	volume := v1.Volume{Name: "base", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "golden"},
	}}}
	d := prepare(t, w, guest("uid-1", volume)).Disks["base"]
	if d.Format != "qcow2" || d.ReadOnly || d.Preallocated || d.Sector == nil {
		t.Errorf("overlay %+v", d)
	}
	if b := d.Backing; b == nil || b.Path != path || b.Format != "raw" || !b.ReadOnly || !b.Preallocated || b.DirectIO != d.DirectIO {
		t.Errorf("below it %+v", d.Backing)
	}
	// Writes of the guest stay in the overlay.
	out, err := exec.CommandContext(t.Context(), "qemu-io", "-f", "qcow2", "-c", "write -P 2 0 64k", d.Path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if b, err := os.ReadFile(path); err != nil || bytes.IndexByte(b, 2) >= 0 {
		t.Errorf("the claim's disk was written to: %v", err)
	}
}

func TestEphemeral_NeedsClaimWithDisk(t *testing.T) {
	link, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(link, "disk.img")); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		claim string
		words []string
	}{
		"none there": {"empty", []string{"write a disk to the claim"}},
		"a link":     {"link", []string{"not a regular file"}},
		"no device":  {"block", []string{"not a block device"}},
		"no claim":   {"none", []string{"cannot locate"}},
		"unnamed":    {"", []string{"Required value: persistentVolumeClaim"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			w.Claims = claims{"empty": {Path: dir}, "link": {Path: link}, "block": {Path: dir, Block: true}}
			volume := v1.Volume{Name: "base", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}
			if row.claim != "" {
				volume.Ephemeral.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: row.claim}
			}
			_, err := w.Prepare(t.Context(), guest("uid-1", volume), kvmHost)
			domainfixture.Says(t, err, append(row.words, "ns/guest", "spec.volumes[0].ephemeral")...)
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("the claim has %v, %v", left, err)
			}
		})
	}
}

func TestExamine_Qcow2Preallocation(t *testing.T) {
	needQemuImg(t)
	for name, row := range map[string]struct {
		options string
		want    bool
	}{"sparse": {"preallocation=off", false}, "full": {"preallocation=full", true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			prepare(t, w, guest("uid-1"))
			path := filepath.Join(w.Dir("uid-1"), "volume-scratch.qcow2")
			out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-f", "qcow2", "-o", row.options, path, "1M").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if d := prepare(t, w, guest("uid-1", emptyDisk("1Mi"))).Disks["scratch"]; d.Preallocated != row.want {
				t.Errorf("preallocated is %t", d.Preallocated)
			}
		})
	}
}

// loop attaches a file to a loop device with that block size.
func loop(t *testing.T, path string, sector int) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", "--sector-size", fmt.Sprint(sector), path).CombinedOutput()
	if err != nil {
		t.Skipf("loop devices cannot be used here: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", device, err, out)
		}
	})
	return device
}

func TestExamine_BlockDeviceSectors(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			device := loop(t, blank(t, filepath.Join(t.TempDir(), "d"), 3<<20), sector)
			w := newWorkspace(t)
			w.Claims = claims{"c": {Path: device, Block: true, Bytes: 99}}
			d := prepare(t, w, guest("uid-1", claimed("c"))).Disks["data"]
			if !d.Block || d.Path != device || d.Bytes != 3<<20 || !d.DirectIO {
				t.Errorf("%+v", d)
			}
			if d.Sector == nil || d.Sector.Logical != uint(sector) || d.Sector.Physical < uint(sector) {
				t.Fatalf("block sizes %+v", d.Sector)
			}
			b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "queue/discard_granularity"))
			if err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(d.Sector.DiscardGranularity) {
				t.Errorf("granularity %d, the kernel says %q, %v", d.Sector.DiscardGranularity, b, err)
			}
		})
	}
}

func TestGrow_BeforeGuestRuns(t *testing.T) {
	needQemuImg(t)
	const mebi = 1 << 20
	overhead := func(p v1.Percent) *v1.PersistentVolumeClaimInfo {
		return &v1.PersistentVolumeClaimInfo{FilesystemOverhead: &p}
	}
	for name, row := range map[string]struct {
		has, capacity int64
		phase         v1.VirtualMachineInstancePhase
		info          *v1.PersistentVolumeClaimInfo
		disk          v1.Disk
		want, bytes   int64
	}{
		"larger claim":              {has: mebi, capacity: 4 * mebi, phase: v1.Scheduled, want: 4 * mebi, bytes: 4 * mebi},
		"whole mebibytes":           {has: mebi, capacity: 4*mebi - 1, want: 3 * mebi, bytes: 3 * mebi},
		"the file system's part":    {has: mebi, capacity: 100 * mebi, info: overhead("0.055"), want: 94 * mebi, bytes: 94 * mebi},
		"a part that is no number":  {has: mebi, capacity: 2 * mebi, info: overhead("much"), want: 2 * mebi, bytes: 2 * mebi},
		"as large as it is":         {has: 4 * mebi, capacity: 4 * mebi, want: 4 * mebi, bytes: 4 * mebi},
		"never smaller":             {has: 4 * mebi, capacity: 2 * mebi, want: 4 * mebi, bytes: 4 * mebi},
		"capacity unknown":          {has: mebi, want: mebi, bytes: mebi},
		"not while the guest runs":  {has: mebi, capacity: 4 * mebi, phase: v1.Running, want: mebi, bytes: 4 * mebi},
		"not while nobody knows":    {has: mebi, capacity: 4 * mebi, phase: v1.Unknown, want: mebi, bytes: 4 * mebi},
		"not while others have it":  {has: mebi, capacity: 4 * mebi, disk: v1.Disk{Name: "data", Shareable: yes()}, want: mebi, bytes: 4 * mebi},
		"with all its blocks":       {has: mebi, capacity: 4 * mebi, info: &v1.PersistentVolumeClaimInfo{Preallocated: true}, want: 4 * mebi, bytes: 4 * mebi},
		"no more than there is":     {has: mebi, capacity: 1 << 60, phase: v1.Running, want: mebi, bytes: -1},
		"a disk of the claim's own": {has: -1, capacity: 100 * mebi, info: overhead("0.1"), want: 90 * mebi, bytes: 90 * mebi},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorkspace(t), t.TempDir()
			path := filepath.Join(dir, "disk.img")
			if row.has >= 0 {
				blank(t, path, row.has)
			}
			w.Claims = claims{"c": {Path: dir, Bytes: row.capacity}}
			vmi := guest("uid-1", claimed("c"))
			vmi.Status.Phase, vmi.Spec.Domain.Devices.Disks = row.phase, []v1.Disk{row.disk}
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: row.info}}
			d := prepare(t, w, vmi).Disks["data"]
			if n := size(t, path); n != row.want {
				t.Errorf("the disk has %d bytes, want %d", n, row.want)
			}
			if row.bytes >= 0 && d.Bytes != row.bytes || row.bytes < 0 && d.Bytes >= row.capacity {
				t.Errorf("it is to have %d bytes, want %d", d.Bytes, row.bytes)
			}
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			if grown := row.info != nil && row.info.Preallocated; grown && st.Blocks*512 < 3*mebi {
				t.Errorf("%d blocks", st.Blocks)
			}
		})
	}
}

func TestGrow_OnceAtMost(t *testing.T) {
	needQemuImg(t)
	w, dir := newWorkspace(t), t.TempDir()
	path := blank(t, filepath.Join(dir, "disk.img"), 1<<20)
	w.Claims = claims{"c": {Path: dir, Bytes: 2 << 20}}
	prepare(t, w, guest("uid-1", claimed("c")))
	// The domain may have been started, though the status does not report it yet.
	w.Claims = claims{"c": {Path: dir, Bytes: 3 << 20}}
	if d := prepare(t, w, guest("uid-1", claimed("c"))).Disks["data"]; d.Bytes != 3<<20 || size(t, path) != 2<<20 {
		t.Errorf("the disk has %d bytes, is to have %d", size(t, path), d.Bytes)
	}
	if d := prepare(t, w, guest("uid-2", claimed("c"))).Disks["data"]; d.Bytes != 3<<20 || size(t, path) != 3<<20 {
		t.Errorf("then the disk has %d bytes, is to have %d", size(t, path), d.Bytes)
	}
}

func TestGrow_DiskInUse(t *testing.T) {
	needQemuImg(t)
	w, dir := newWorkspace(t), t.TempDir()
	path := blank(t, filepath.Join(dir, "disk.img"), 1<<20)
	use := exec.CommandContext(t.Context(), "qemu-system-x86_64", "-accel", "tcg", "-m", "32", "-nodefaults", "-display", "none", "-S", "-qmp", "stdio",
		"-drive", "if=none,id=d,format=raw,file="+path, "-device", "virtio-blk-pci,drive=d")
	in, err := use.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := use.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := use.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(use.Process.Kill(), use.Wait()) }()
	// It answers when it has all its devices.
	if _, err := fmt.Fprintln(in, `{"execute":"qmp_capabilities"}`); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), `"return"`); {
	}
	w.Claims = claims{"c": {Path: dir, Bytes: 4 << 20}}
	_, err = w.Prepare(t.Context(), guest("uid-1", claimed("c")), kvmHost)
	domainfixture.Says(t, err, "ns/guest", "persistentVolumeClaim.claimName", "cannot grow", "lock", "nothing else uses the disk")
	if size(t, path) != 1<<20 {
		t.Errorf("%d bytes", size(t, path))
	}
}
