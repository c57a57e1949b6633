// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"math"
	"time"
)

// Link is the connection from a hypervisor to a peer. It is made by [Hypervisor.Link], or by
// [Hypervisor.Connect], and lasts as long as the hypervisor.
type Link struct {
	h *state // whose mutex guards the fields below

	peer     *Hypervisor // nil while nothing is connected
	rate     uint64      // bytes a second; 0: no limit
	cut      bool
	atSwitch switchFault
}

// switchFault is the fault of the link when a guest is about to run at the other end.
type switchFault int

const (
	noFault switchFault = iota
	// breaksBefore loses the last part, breaksAfter its acknowledgement.
	breaksBefore
	breaksAfter
	// losesAnswer is breaksAfter, and the source takes it for breaksBefore.
	losesAnswer
)

var errLinkCut = errors.New("the connection to the destination broke")

// connections connects to other hypervisors.
type connections struct{ *state }

// Link returns the link to uri. Links are perfect and infinitely fast at first.
func (h *connections) Link(uri string) *Link {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lockedLink(uri)
}

func (h *state) lockedLink(uri string) *Link {
	l := h.links[uri]
	if l == nil {
		l = &Link{h: h}
		h.links[uri] = l
	}
	return l
}

// Connect makes peer the destination of migrations to uri.
func (h *connections) Connect(uri string, peer *Hypervisor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lockedLink(uri).peer = peer
}

// MigrationTakes sets how long a migration over a link without a rate of its own copies the memory
// and the disks of a guest that does not rewrite them; at first no time. Use a [Fault] of the call
// Migrate for one that fails before it begins.
func (h *connections) MigrationTakes(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takes = d
}

// SetBandwidth sets the bandwidth of the link in bytes per second, for each migration; zero is
// without limit.
func (l *Link) SetBandwidth(bytesPerSecond uint64) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	l.lockedEach(func(g *guest) { l.h.lockedSettle(g) })
	l.rate = bytesPerSecond
	l.lockedEach(func(g *guest) { g.job.copying.rate = l.h.lockedRate(g.job) })
}

// Cut breaks the link, with its streams: a guest that is being copied stays where it is, one that
// runs at the other end already waits there, without some of its memory, until the migration is
// resumed. No migration begins until Restore.
func (l *Link) Cut() {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	l.lockedCut()
}

func (l *Link) lockedCut() {
	l.cut = true
	l.lockedEach(func(g *guest) { g.job.stop(errLinkCut) })
}

// CutAtSwitch breaks the link, once, when a guest has been stopped to run at the other end. The
// source does not learn its state there: if arrived is set the guest runs at the target, else it
// still waits there, and is stopped on both sides.
func (l *Link) CutAtSwitch(arrived bool) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	l.atSwitch = breaksBefore
	if arrived {
		l.atSwitch = breaksAfter
	}
}

// LoseAnswer breaks the link, once, when a guest has arrived at the other end, and the source,
// without the answer, resumes the guest, as libvirt does: it runs twice, unless it arrived paused
// ([domain.MigrationRequest.Paused]), or the target has locked a disk ([plan.ImageLocked]), so that
// the source cannot resume it.
func (l *Link) LoseAnswer() {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	l.atSwitch = losesAnswer
}

// Restore restores the link to its state before Cut, CutAtSwitch or LoseAnswer.
func (l *Link) Restore() {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	l.cut, l.atSwitch = false, noFault
}

// lockedEach calls do for the guests that are migrating over the link.
func (l *Link) lockedEach(do func(*guest)) {
	for _, g := range l.h.guests {
		if g.job != nil && g.job.link == l {
			do(g)
			g.job.poke()
		}
	}
}

// lockedRate is the highest rate of a migration.
func (h *state) lockedRate(j *migrationJob) float64 {
	rate := math.Inf(1)
	if h.takes > 0 {
		rate = j.copying.total / h.takes.Seconds()
	}
	if j.link.rate > 0 {
		rate = float64(j.link.rate)
	}
	if j.limit > 0 {
		rate = min(rate, float64(j.limit)*(1<<20))
	}
	return rate
}

// lockedSettle advances the guest's migration, if there is one, before a change of its settings.
func (h *state) lockedSettle(g *guest) {
	if g.job == nil || !g.job.prepared || g.job.broken {
		return
	}
	g.job.copying.settle(h.clock.Now())
	g.job.poke()
}
