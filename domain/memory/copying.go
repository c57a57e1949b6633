// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"math"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// Defaults of a hypervisor in memory, which are QEMU's.
const (
	defaultMaxDowntime = 300 * time.Millisecond
	// defaultMemory is that of a domain whose definition sets none.
	defaultMemory = 64 << 20
	// A guest that rewrites more than half of a pass's data is throttled, at first by
	// throttleInitial percent and by throttleIncrement more after each further pass, up to
	// throttleMax.
	throttleInitial, throttleIncrement, throttleMax = 20, 10, 99
)

// Load is a guest's use of its memory.
type Load struct {
	// Bytes is the size of its memory; zero is that of its definition.
	Bytes uint64
	// DirtyBytesPerSecond is the rate at which it rewrites memory while it runs.
	DirtyBytesPerSecond uint64
	// WorkingSet is the size of the rewritten part; zero is all.
	WorkingSet uint64
}

// SetLoad sets a guest's use of its memory, which decides the course of its migrations: they copy
// it in passes at the rate of the [Link], each the data rewritten during the previous one, until
// the rest fits into the maximal downtime. At first a guest rewrites nothing. The load migrates
// with the guest. It returns false if there is no such domain, or it does not run.
func (h *connections) SetLoad(name string, l Load) bool {
	return h.running(name, func(g *guest) {
		h.lockedSettle(g)
		g.load = l
		if g.job != nil {
			g.job.copying.load = g.lockedLoad()
		}
	})
}

// lockedLoad is the guest's load with defaults filled in.
func (g *guest) lockedLoad() Load {
	l := g.load
	if l.Bytes == 0 && g.def.Memory != nil {
		l.Bytes = uint64(g.def.Memory.Value) * bytesOf[g.def.Memory.Unit]
	}
	if l.Bytes == 0 {
		l.Bytes = defaultMemory
	}
	if l.WorkingSet == 0 || l.WorkingSet > l.Bytes {
		l.WorkingSet = l.Bytes
	}
	return l
}

// copying is the state of the copy of a guest. It reads no clock: it depends on its fields and the
// given times only.
type copying struct {
	load        Load
	still       bool    // the guest's CPUs are stopped
	rate        float64 // bytes a second; infinite without a limit
	maxDowntime time.Duration
	converge    bool // auto-converge is allowed

	began, at time.Time // at is the time of the state
	total     float64
	disks     float64 // remaining bytes of the disks, which go first
	pass      float64 // bytes of the current pass
	left      float64 // remaining bytes of it
	dirtied   float64 // rewritten since the pass began
	sent      float64
	iteration uint64
	throttle  int
	postCopy  bool
	downtime  time.Duration // expected
	done      bool          // all but the last part, or with post-copy all, has arrived
}

// begin starts the copy.
func (c *copying) begin(disks uint64, now time.Time) {
	c.began, c.at, c.iteration = now, now, 1
	c.disks = float64(disks)
	c.pass = float64(c.load.Bytes)
	c.left = c.pass
	c.total = c.disks + c.pass
}

// dirtyRate is the rate of memory that has to be sent again.
func (c *copying) dirtyRate() float64 {
	if c.still || c.postCopy {
		return 0
	}
	return float64(c.load.DirtyBytesPerSecond) * float64(100-c.throttle) / 100
}

// next is the time until the state changes: the disks have arrived, a pass ends. A stalled copy
// waits for a change of its settings.
func (c *copying) next() time.Duration {
	what := c.left
	if c.disks > 0 {
		what = c.disks
	}
	if c.rate <= 0 {
		return math.MaxInt64
	}
	seconds := what / c.rate
	if seconds > (1000 * time.Hour).Seconds() {
		return 1000 * time.Hour
	}
	return time.Duration(math.Ceil(seconds * float64(time.Second)))
}

// settle advances the state to now.
func (c *copying) settle(now time.Time) {
	for !c.done {
		step := min(c.next(), max(now.Sub(c.at), 0))
		ends := step == c.next()
		c.at = c.at.Add(step)
		c.flow(step, ends)
		if !ends {
			return
		}
		c.turn()
	}
	if now.After(c.at) {
		c.at = now
	}
}

// flow sends for that long; ends reports that the current part is complete.
func (c *copying) flow(d time.Duration, ends bool) {
	what := &c.left
	if c.disks > 0 {
		what = &c.disks
	} else {
		c.dirtied = min(float64(c.load.WorkingSet), c.dirtied+c.dirtyRate()*d.Seconds())
	}
	n := *what
	if !ends {
		n = min(n, c.rate*d.Seconds())
	}
	*what -= n
	c.sent += n
}

// turn ends the disks, or a pass: the next one begins, unless the rest may be sent while the guest
// is stopped.
func (c *copying) turn() {
	if c.left > 0 {
		return // the disks have arrived; the memory follows
	}
	if c.postCopy {
		c.done = true
		return
	}
	c.downtime = time.Duration(c.dirtied / c.rate * float64(time.Second))
	if c.downtime <= c.maxDowntime {
		c.done = true
		return
	}
	if c.converge && c.iteration > 1 && c.dirtied > c.pass/2 { // the first pass is always complete
		c.throttle = min(max(throttleInitial, c.throttle+throttleIncrement), throttleMax)
	}
	c.pass, c.left, c.dirtied = c.dirtied, c.dirtied, 0
	c.iteration++
}

// toPostCopy sends the rest while the guest runs at the other end.
func (c *copying) toPostCopy() {
	c.left = min(c.left+c.dirtied, float64(c.load.Bytes))
	c.pass, c.dirtied, c.throttle = c.left, 0, 0
	c.postCopy = true
}

// progress returns the progress as a driver reports it.
func (c *copying) progress() domain.Progress {
	p := domain.Progress{
		Active: true, Elapsed: c.at.Sub(c.began), Total: uint64(c.total), Processed: uint64(c.sent), Remaining: uint64(c.disks + c.left),
		Iteration: c.iteration, Downtime: c.downtime, DirtyBytesPerSecond: uint64(c.dirtyRate()), Throttle: c.throttle, PostCopy: c.postCopy,
	}
	if !math.IsInf(c.rate, 1) {
		p.BytesPerSecond = uint64(c.rate)
	}
	return p
}
