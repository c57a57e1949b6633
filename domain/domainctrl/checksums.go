// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
)

const (
	// checksumRate is how many bytes of images a node reads in a second for their checksums, of all its VMIs together.
	checksumRate = 256 << 20
	// checksumJobs is for how many VMIs that run here it does so at the same time.
	checksumJobs = 4
	// verifyWithin is how long a target waits for the checksums of its images. After that the digests, with which its Pod was
	// created, have to do: a migration must not fail because an image is large, or others' are.
	verifyWithin = 30 * time.Second
)

// checksums computes the checksums of VMIs' images beside all workers: of a VMI that runs here, once in its life, and, to
// compare them, at the target of its migration. They are remembered in the status, or, if it does not have them, until the VMI
// leaves.
type checksums struct {
	workspace *workspace.Workspace
	clock     clock.PassiveClock
	pace      *rate.Limiter
	slots     chan struct{}

	background
	jobs map[types.NamespacedName]*checksumJob
}

// checksumJob is the computation for one VMI.
type checksumJob struct {
	id     string // of the VMI, and of the migration to this node
	begun  time.Time
	cancel context.CancelFunc
	done   bool
	stored bool // in the status, whatever a cache still has
	found  status.Checksums
}

func newChecksums(w *workspace.Workspace, c clock.PassiveClock) *checksums {
	return &checksums{
		workspace: w, clock: c, pace: rate.NewLimiter(checksumRate, workspace.ChecksumPiece), slots: make(chan struct{}, checksumJobs),
		jobs: map[types.NamespacedName]*checksumJob{},
	}
}

// see fills in the checksums of the VMI's images, or, at the target of its migration, until when to wait for them. It begins to
// compute those that are wanted.
func (c *checksums) see(ctx context.Context, key types.NamespacedName, w observed, s *plan.Snapshot, node string) {
	id, target := checksumsWanted(w, s, node)
	if id == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil || c.ctx.Err() != nil {
		return
	}
	job := c.jobs[key]
	if job == nil || job.id != id {
		job = c.lockedBegin(ctx, key, id, *s, target)
	}
	switch {
	case job.stored:
	case job.done:
		s.Checksums = job.found
	case target:
		s.VerifyUntil = job.begun.Add(verifyWithin)
	}
}

// checksumsWanted returns what the checksums are for, the VMI or, at its target, its migration; empty if none are wanted now.
func checksumsWanted(w observed, s *plan.Snapshot, node string) (id string, target bool) {
	files, known := status.ChecksumsOf(s.VMI).Known(s.VMI)
	switch role := w.role(node); {
	case role == handoff.RoleHolder && running(s) != nil && known < files:
		return string(s.VMI.UID), false
	case role == handoff.RoleTarget && w.lease.State == handoff.Preparing && known > 0:
		return fmt.Sprintf("%s in epoch %d", s.VMI.UID, w.lease.Epoch), true
	}
	return "", false
}

// lockedBegin begins to compute the checksums of a VMI. One that runs here waits for others, a migration does not. It needs c.mu.
func (c *checksums) lockedBegin(ctx context.Context, key types.NamespacedName, id string, s plan.Snapshot, target bool) *checksumJob {
	c.lockedForget(key)
	within, cancel := context.WithCancel(c.ctx)
	job := &checksumJob{id: id, begun: c.clock.Now(), cancel: cancel}
	c.jobs[key] = job
	log, vmi, facts := logger(ctx), s.VMI.DeepCopy(), s.Facts
	c.all.Go(func() {
		defer cancel()
		if !target {
			select {
			case c.slots <- struct{}{}:
				defer func() { <-c.slots }()
			case <-within.Done():
				return
			}
		}
		found, err := c.workspace.Checksums(within, vmi, facts, c.pace.WaitN)
		if within.Err() != nil {
			return
		}
		if err != nil {
			log.Error(err, "Failed to compute the checksums of images")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if job.done, job.found = true, found; c.jobs[key] == job {
			c.queue.Add(reconcile.Request{NamespacedName: key})
		}
	})
	return job
}

// note remembers that the VMI's status has the checksums, once it was written with them.
func (c *checksums) note(key types.NamespacedName, vmi *v1.VirtualMachineInstance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	job := c.jobs[key]
	if job == nil || !job.done || vmi == nil || job.id != string(vmi.UID) {
		return
	}
	_, found := job.found.Known(vmi)
	_, known := status.ChecksumsOf(vmi).Known(vmi)
	job.stored = known >= found
}

// keep ends what is computed for a VMI unless the VMI is still this node's.
func (c *checksums) keep(key types.NamespacedName, ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ours {
		c.lockedForget(key)
	}
}

func (c *checksums) lockedForget(key types.NamespacedName) {
	if job := c.jobs[key]; job != nil {
		job.cancel()
		delete(c.jobs, key)
	}
}
