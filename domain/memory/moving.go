// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/stats"
)

// source carries out the job of a migration from here.
type source struct{ *state }

// target is the other end of the job of a migration to here.
type target struct{ *state }

// run carries a job out.
func (h *source) run(j *migrationJob) {
	defer close(j.over)
	if j.before != nil {
		close(j.switched)
		j.err = h.finish(j, errors.Join(j.peer.goOn(j), h.copy(j)))
		return
	}
	err := h.prepare(j)
	h.mu.Lock()
	if g, ok := h.guests[j.req.Domain]; ok && g.job == j && err == nil {
		j.prepared = true
		h.lockedCopy(g, j)
	}
	h.mu.Unlock()
	if err == nil {
		err = h.copy(j)
	}
	j.err = h.finish(j, err)
}

// prepare makes the guest appear at the destination, stopped.
func (h *source) prepare(j *migrationJob) error {
	arriving, err := h.arriving(j)
	if err != nil {
		return err
	}
	peer, name := j.peer, j.req.Domain
	peer.mu.Lock()
	defer peer.mu.Unlock()
	if peer.down != nil {
		return errors.New("the destination is unreachable")
	}
	if old, exists := peer.guests[name]; exists && old.state.Alive() {
		return fmt.Errorf("runs at the destination already: %w", domain.ErrInvalidState)
	}
	for _, d := range disksAt(arriving.def, j.req.CopyDisks) {
		path := pathOf(d)
		has, known := peer.files[path]
		if needs := arriving.lockedSize(aliasOf(d)); known && has != needs {
			return fmt.Errorf("disk %s: %s at the destination has %d bytes, it needs %d: %w", aliasOf(d), path, has, needs, domain.ErrInvalid)
		}
	}
	peer.nextID++
	arriving.id = peer.nextID
	peer.guests[name] = arriving
	peer.lockedEmit(name, "Started")
	return nil
}

// lockedCopy lets the copy begin now.
func (h *source) lockedCopy(g *guest, j *migrationJob) {
	j.copying.load, j.copying.still = g.lockedLoad(), g.state.Status == domain.StatusPaused
	j.copying.begin(g.lockedCopied(j.req.CopyDisks), h.clock.Now())
	j.copying.rate = h.lockedRate(j)
}

// arriving is the domain as it first appears at the destination.
func (h *source) arriving(j *migrationJob) (*guest, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[j.req.Domain]
	switch {
	case !ok:
		return nil, domain.ErrNotFound
	case j.link.cut:
		return nil, errLinkCut
	}
	from := g.def
	if j.req.Definition != nil {
		from = j.req.Definition
	}
	def, err := clone(from)
	if err != nil {
		return nil, err
	}
	out := &guest{state: g.state, def: def, inbound: true, coming: j, sizes: g.sizes}
	if j.req.Definition != nil {
		if m, ours, err := domain.MetadataOf(def); err == nil && ours {
			out.state.Metadata = m
		}
		def.Metadata = nil
	}
	out.state.Status, out.state.Reason = domain.StatusPaused, domain.ReasonMigration
	return out, nil
}

// pathOf is the path of a disk's file or device; empty if it has none.
func pathOf(d *libvirtxml.DomainDisk) string {
	switch {
	case d.Source == nil:
		return ""
	case d.Source.File != nil:
		return d.Source.File.File
	case d.Source.Block != nil:
		return d.Source.Block.Dev
	}
	return ""
}

// copy returns nil when all but the last part of the guest is at the destination, or why it never
// will be.
func (h *source) copy(j *migrationJob) error {
	for {
		h.mu.Lock()
		j.copying.settle(h.clock.Now())
		done, next := j.copying.done, j.copying.next()
		timer := h.clock.NewTimer(next)
		h.mu.Unlock()
		if done {
			timer.Stop()
			return nil
		}
		select {
		case <-timer.C():
		case <-j.changed:
		case <-j.done:
			timer.Stop()
			return j.why
		}
		timer.Stop()
	}
}

// luggage is the state that migrates with a guest beside its definition.
type luggage struct {
	agent   *guestagent.Info
	frozen  bool
	reboots int
	deaf    bool
	// paused and postCopy decide how it continues.
	paused, postCopy bool

	load  Load
	sizes map[string]uint64
	stats stats.Domain
}

func (g *guest) lockedPack(j *migrationJob) luggage {
	return luggage{
		agent: g.agent, frozen: g.frozen, reboots: g.reboots, deaf: g.deaf, load: g.load, sizes: g.sizes, stats: g.stats,
		paused: j.req.Paused || g.state.Status == domain.StatusPaused, postCopy: j.copying.postCopy,
	}
}

// lockedLeave stops the domain because it runs elsewhere now.
func (g *guest) lockedLeave(s domain.Status, r domain.Reason) {
	g.state.Status, g.state.Reason = s, r
	g.lockedGone()
}

// finish completes the migration, or leaves the guest where it is.
func (h *source) finish(j *migrationJob, failure error) error {
	name := j.req.Domain
	h.mu.Lock()
	g, ok := h.guests[name]
	here := ok && g.job == j && g.state.Alive()
	select {
	case <-j.done: // it may have been stopped since
		failure = j.why
	default:
	}
	switch {
	case !here && failure == nil:
		failure = errors.New("the domain ended")
	case j.link.cut && failure == nil:
		failure = errLinkCut
	}
	if j.copying.postCopy {
		h.mu.Unlock()
		<-j.switched
		return h.finishPostCopy(j, failure)
	}
	if failure != nil {
		h.lockedEnd(j)
		h.mu.Unlock()
		j.peer.forget(j)
		return failure
	}
	l := g.lockedPack(j)
	if fault := j.link.atSwitch; fault != noFault {
		h.lockedLoseTouch(g, j, fault, l)
		h.mu.Unlock()
		if fault != breaksBefore {
			j.peer.arrive(j, l)
			j.peer.arrived(j)
		}
		return fmt.Errorf("the destination has not confirmed that the domain runs there: %w", errLinkCut)
	}
	h.lockedMoved(g, j)
	h.mu.Unlock()
	j.peer.arrive(j, l)
	j.peer.arrived(j)
	return nil
}

// lockedLoseTouch breaks the link at the switch.
func (h *source) lockedLoseTouch(g *guest, j *migrationJob, fault switchFault, l luggage) {
	j.link.cut, j.link.atSwitch = true, noFault
	runsOn := fault == losesAnswer && (l.paused || !plan.ImageLocked(g.def, j.req.CopyDisks))
	if !runsOn {
		g.lockedLeave(domain.StatusPaused, domain.ReasonMigration)
		h.lockedEmit(j.req.Domain, "Suspended")
	}
	h.lockedEnd(j)
}

// finishPostCopy ends a job of a guest that runs at the destination.
func (h *source) finishPostCopy(j *migrationJob, failure error) error {
	h.mu.Lock()
	g, ok := h.guests[j.req.Domain]
	here := ok && g.job == j && g.state.Alive()
	switch {
	case here && failure == nil:
		h.lockedMoved(g, j)
	case here:
		j.broken = true
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonPostcopyFailed
		h.lockedEmit(j.req.Domain, "PostcopyFailed")
	default:
		h.lockedEnd(j)
	}
	h.mu.Unlock()
	if failure == nil {
		j.peer.arrived(j)
		return nil
	}
	j.peer.starve(j)
	return fmt.Errorf("post-copy failed: %w", failure)
}

// lockedMoved ends the domain here, as it runs at the destination.
func (h *source) lockedMoved(g *guest, j *migrationJob) {
	g.lockedLeave(domain.StatusShutoff, domain.ReasonMigrated)
	h.lockedEnd(j)
	h.lockedEmit(j.req.Domain, "Stopped")
}

// lockedEnd drops the job but for its final progress.
func (h *source) lockedEnd(j *migrationJob) {
	g, ok := h.guests[j.req.Domain]
	if !ok || g.job != j {
		return
	}
	g.job = nil
	if j.prepared {
		j.copying.settle(h.clock.Now())
		g.last = j.copying.progress()
		g.last.Active = false
	}
}

// lockedComing returns the domain of an inbound job, if it still exists.
func (h *target) lockedComing(j *migrationJob) (*guest, bool) {
	g, ok := h.guests[j.req.Domain]
	return g, ok && g.coming == j && g.state.Alive()
}

// goOn resumes a guest that waits for memory by the job that resumes its migration.
func (h *target) goOn(j *migrationJob) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.lockedComing(j.before)
	if !ok {
		err := errors.New("the destination no longer has the domain")
		j.stop(err)
		return err
	}
	g.coming = j
	if g.state.Status == domain.StatusRunning {
		g.state.Reason = domain.ReasonPostcopy
	}
	h.lockedEmit(j.req.Domain, "PostcopyResumed")
	return nil
}

// forget removes a guest that did not arrive.
func (h *target) forget(j *migrationJob) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[j.req.Domain]
	if ok && g.coming == j && g.inbound {
		delete(h.guests, j.req.Domain)
		h.lockedEmit(j.req.Domain, "Undefined")
	}
}

// arrive resumes the guest.
func (h *target) arrive(j *migrationJob, l luggage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.lockedComing(j)
	if !ok {
		return
	}
	g.inbound = false
	g.agent, g.frozen, g.reboots, g.deaf, g.load, g.sizes, g.stats = l.agent, l.frozen, l.reboots, l.deaf, l.load, l.sizes, l.stats
	g.state.Status, g.state.Reason = domain.StatusRunning, domain.ReasonUnknown
	if l.postCopy {
		g.state.Reason = domain.ReasonPostcopy
	}
	if l.paused {
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonUser
	}
	h.lockedEmit(j.req.Domain, "Resumed")
}

// arrived records that the guest is complete.
func (h *target) arrived(j *migrationJob) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.lockedComing(j)
	if !ok {
		return
	}
	g.coming = nil
	if g.state.Reason == domain.ReasonPostcopy || g.state.Reason == domain.ReasonPostcopyFailed {
		g.state.Reason = domain.ReasonUnknown
		h.lockedEmit(j.req.Domain, "Resumed")
	}
}

// starve records that the rest of the guest's memory does not arrive.
func (h *target) starve(j *migrationJob) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g, ok := h.lockedComing(j); ok && g.state.Status == domain.StatusRunning {
		g.state.Reason = domain.ReasonPostcopyFailed
		h.lockedEmit(j.req.Domain, "PostcopyFailed")
	}
}
