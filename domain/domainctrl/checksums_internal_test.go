// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
)

// summing is a node that computes checksums, in a bubble.
type summing struct {
	testing.TB
	*checksums
	disk string
	stop context.CancelFunc
}

func withChecksums(t *testing.T, test func(*summing)) {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(disk, []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := &summing{TB: t, checksums: newChecksums(&workspace.Workspace{Root: t.TempDir()}, clock.RealClock{}), disk: disk}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		var ctx context.Context
		ctx, c.stop = context.WithCancel(t.Context())
		if err := c.source().Start(ctx, queue); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- c.Start(ctx) }()
		test(c)
		c.stop()
		queue.ShutDown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// blocked lets nothing be read any more.
func (c *summing) blocked() *summing {
	c.pace = rate.NewLimiter(rate.Every(time.Hour), workspace.ChecksumPiece)
	c.pace.AllowN(time.Now(), workspace.ChecksumPiece)
	return c
}

// pass is a pass over the VMI of that name under the lease, which runs here or does not, after what was begun has come to rest.
func (c *summing) pass(name string, l handoff.Lease, runs bool, stored uint32) plan.Snapshot {
	c.Helper()
	key := types.NamespacedName{Namespace: "ns", Name: name}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}}}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", ContainerDiskVolume: &v1.ContainerDiskInfo{Checksum: stored}}}
	s := plan.Snapshot{VMI: vmi, Facts: convert.Facts{Disks: map[string]convert.DiskSource{"root": {Backing: &convert.DiskSource{Path: c.disk}}}}}
	if runs {
		s.State = &domain.State{Status: domain.StatusRunning, Domain: &libvirtxml.Domain{}}
	}
	if err := handoff.Put(vmi, l); err != nil {
		c.Fatal(err)
	}
	c.see(c.Context(), key, observe(vmi, time.Time{}), &s, "node-a")
	synctest.Wait()
	return s
}

// wants checks for how many VMIs a pass was requested since the last check.
func (c *summing) wants(passes int) {
	c.Helper()
	if n := c.queue.Len(); n != passes {
		c.Errorf("%d passes were requested, want %d", n, passes)
	}
	for range c.queue.Len() {
		req, _ := c.queue.Get()
		c.queue.Done(req)
	}
}

var (
	runsHere  = handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"}
	movesHere = handoff.Lease{State: handoff.Preparing, Epoch: 2, Holder: "node-b", Target: "node-a", Tag: "m"}
)

func TestChecksums_OnceAStart(t *testing.T) {
	withChecksums(t, func(c *summing) {
		want := crc32.ChecksumIEEE([]byte("disk"))
		if c.pass("guest", runsHere, false, 0); len(c.jobs) != 0 {
			t.Error("the start of a domain is delayed")
		}
		if c.pass("guest", runsHere, true, want); len(c.jobs) != 0 {
			t.Error("the status has them already")
		}
		if s := c.pass("guest", runsHere, true, 0); s.Checksums.Disks != nil || !s.VerifyUntil.IsZero() {
			t.Errorf("%+v", s)
		}
		c.wants(1)
		if err := os.Remove(c.disk); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a stale cache does not have them yet
			if s := c.pass("guest", runsHere, true, 0); s.Checksums.Disks["root"] != want {
				t.Errorf("%+v", s.Checksums)
			}
		}
		written := c.pass("guest", runsHere, true, 0).VMI
		key := types.NamespacedName{Namespace: "ns", Name: "guest"}
		if c.note(key, written); c.jobs[key].stored {
			t.Error("another write counts as that of the checksums")
		}
		written.Status.VolumeStatus[0].ContainerDiskVolume.Checksum = want
		c.note(key, written)
		if s := c.pass("guest", runsHere, true, 0); s.Checksums.Disks != nil {
			t.Errorf("they are written again: %+v", s.Checksums)
		}
		c.wants(0)
	})
}

func TestChecksums_AtTarget(t *testing.T) {
	withChecksums(t, func(c *summing) {
		want := crc32.ChecksumIEEE([]byte("disk"))
		if c.pass("guest", movesHere, false, 0); len(c.jobs) != 0 {
			t.Error("there is nothing to compare with")
		}
		if s := c.pass("guest", movesHere, false, 7); s.VerifyUntil != time.Now().Add(verifyWithin) {
			t.Errorf("waits until %v", s.VerifyUntil)
		}
		if s := c.pass("guest", movesHere, false, 7); !s.VerifyUntil.IsZero() || s.Checksums.Disks["root"] != want {
			t.Errorf("%+v", s)
		}
		c.wants(1)
		again := movesHere
		again.Epoch = 4
		if s := c.pass("guest", again, false, 7); s.VerifyUntil.IsZero() || s.Checksums.Disks != nil {
			t.Errorf("those of another migration: %+v", s)
		}
		c.wants(1)
	})
}

// TestChecksums_Slow: a VMI whose images take long delays neither a migration, nor the end of the agent or of the VMI.
func TestChecksums_Slow(t *testing.T) {
	withChecksums(t, func(c *summing) {
		pace := c.pace
		c.blocked()
		for _, name := range []string{"a", "b", "c", "d", "waits"} {
			c.pass(name, runsHere, true, 0)
		}
		if len(c.slots) != checksumJobs {
			t.Errorf("%d computations at once", len(c.slots))
		}
		c.pace = pace
		if s := c.pass("guest", movesHere, false, 7); s.VerifyUntil.IsZero() {
			t.Errorf("%+v", s)
		}
		c.wants(1)
		c.keep(types.NamespacedName{Namespace: "ns", Name: "a"}, false)
		synctest.Wait()
		c.wants(1) // the one that waited
		c.stop()
		synctest.Wait()
		if c.pass("late", runsHere, true, 0); c.jobs[types.NamespacedName{Namespace: "ns", Name: "late"}] != nil {
			t.Error("begun after the end")
		}
		c.wants(0)
	})
}

// TestChecksums_Unreadable: an image that cannot be read is not tried in each pass, and holds up no migration.
func TestChecksums_Unreadable(t *testing.T) {
	withChecksums(t, func(c *summing) {
		if err := os.Truncate(c.disk, 1<<37); err != nil {
			t.Fatal(err)
		}
		c.pass("guest", movesHere, false, 7)
		c.wants(1)
		if s := c.pass("guest", movesHere, false, 7); !s.VerifyUntil.IsZero() || s.Checksums.Verify(s.VMI, "node-a") != nil {
			t.Errorf("%+v", s)
		}
		c.wants(0)
	})
}
