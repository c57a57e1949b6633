// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// MigrationProgress is the type of the condition that says how far the guest's live
// migration has come: its reason is the mode (status.migrationState.mode), its message
// what [Progress.String] writes. It is there while the guest moves.
const MigrationProgress v1.VirtualMachineInstanceConditionType = "virtloom.dev/MigrationProgress"

// tellProgress keeps the condition [MigrationProgress] and the mode of a guest that
// moves, and removes the condition with the end of the move. From post-copy there is no
// way back.
func (d *decision) tellProgress() {
	vmi, node := d.plan.VMI, d.Node
	switch {
	case vmi == nil, d.next.State == handoff.Lost:
		return
	case d.next.Holder != node && d.next.State == d.lease.State:
		return // it is the holder's to say
	case d.next.State != handoff.Moving:
		vmistatus.RemoveCondition(vmi, MigrationProgress)
		return
	case d.Shown == nil:
		return
	}
	mode := d.MoveMode
	if m := vmi.Status.MigrationState; m != nil {
		if mode == "" || m.Mode == v1.MigrationPostCopy {
			mode = m.Mode
		}
		m.Mode = mode
	}
	if mode == "" {
		mode = v1.MigrationPreCopy
	}
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
		Type: MigrationProgress, Status: corev1.ConditionTrue, Reason: string(mode), Message: d.Shown.String(),
	}, d.now)
}

// ProgressOf reads the condition [MigrationProgress]; false if there is none, or one
// that makes no sense.
func ProgressOf(vmi *v1.VirtualMachineInstance) (Progress, bool) {
	c := conditionOf(vmi, MigrationProgress)
	if c == nil {
		return Progress{}, false
	}
	p, err := ParseProgress(c.Message)
	p.PostCopy = c.Reason == string(v1.MigrationPostCopy)
	return p, err == nil
}

// The keys of the text, in its order.
const (
	keyProcessed = "processed"
	keyRemaining = "remaining"
	keyTotal     = "total"
	keyRate      = "rate"
	keyDirty     = "dirty"
	keyDowntime  = "downtime"
	keyIteration = "iteration"
	keyThrottle  = "throttle"
	keyETA       = "eta"
)

// String writes the progress on one line, as
//
//	processed=142Mi remaining=114Mi total=256Mi rate=34Mi/s dirty=12Mi/s downtime=120ms iteration=2 throttle=20% eta=6s
//
// Bytes are whole MiB, or the next smaller unit where that would be none, and rounded
// down; the downtime is in milliseconds. What is not known, or zero, is left out but for
// bytes. eta is [Progress.Left] of the numbers written, in seconds rounded up. [ParseProgress]
// reads it.
func (p Progress) String() string {
	p = p.rounded()
	var b strings.Builder
	put := func(key, value string) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(key + "=" + value)
	}
	put(keyProcessed, bytesText(p.Processed))
	put(keyRemaining, bytesText(p.Remaining))
	put(keyTotal, bytesText(p.Total))
	if p.BytesPerSecond > 0 {
		put(keyRate, bytesText(p.BytesPerSecond)+perSecond)
	}
	if p.DirtyBytesPerSecond > 0 {
		put(keyDirty, bytesText(p.DirtyBytesPerSecond)+perSecond)
	}
	if p.Downtime > 0 {
		put(keyDowntime, strconv.FormatInt(p.Downtime.Milliseconds(), 10)+"ms")
	}
	if p.Iteration > 0 {
		put(keyIteration, strconv.FormatUint(p.Iteration, 10))
	}
	if p.Throttle > 0 {
		put(keyThrottle, strconv.Itoa(p.Throttle)+"%")
	}
	if left, known := p.Left(); known {
		put(keyETA, strconv.FormatInt(int64((left+time.Second-1)/time.Second), 10)+"s")
	}
	return b.String()
}

const perSecond = "/s"

// rounded is the progress as far as its text tells it.
func (p Progress) rounded() Progress {
	for _, n := range []*uint64{&p.Processed, &p.Remaining, &p.Total, &p.BytesPerSecond, &p.DirtyBytesPerSecond} {
		_, unit := unitOf(*n)
		*n -= *n % unit
	}
	p.Downtime = p.Downtime.Truncate(time.Millisecond)
	return p
}

// unitOf is the unit a number of bytes is written in.
func unitOf(n uint64) (name string, bytes uint64) {
	switch {
	case n >= 1<<20:
		return "Mi", 1 << 20
	case n >= 1<<10:
		return "Ki", 1 << 10
	}
	return "", 1
}

func bytesText(n uint64) string {
	name, unit := unitOf(n)
	return strconv.FormatUint(n/unit, 10) + name
}

// ParseProgress reads what [Progress.String] has written: the progress of a migration
// that is active, with numbers as round as the text. Keys that it does not know are left
// out. The error names the key that makes no sense.
func ParseProgress(text string) (Progress, error) {
	p := Progress{Active: true}
	for _, field := range strings.Fields(text) {
		key, value, _ := strings.Cut(field, "=")
		read, known := progressKeys[key]
		if !known {
			continue
		}
		if err := read(&p, value); err != nil {
			return Progress{}, fmt.Errorf("domain: progress %q: %s: %w", text, key, err)
		}
	}
	return p, nil
}

// progressKeys tell how the value of each key is read.
var progressKeys = map[string]func(*Progress, string) error{
	keyProcessed: func(p *Progress, v string) (err error) { p.Processed, err = parseBytes(v, ""); return err },
	keyRemaining: func(p *Progress, v string) (err error) { p.Remaining, err = parseBytes(v, ""); return err },
	keyTotal:     func(p *Progress, v string) (err error) { p.Total, err = parseBytes(v, ""); return err },
	keyRate:      func(p *Progress, v string) (err error) { p.BytesPerSecond, err = parseBytes(v, perSecond); return err },
	keyDirty: func(p *Progress, v string) (err error) {
		p.DirtyBytesPerSecond, err = parseBytes(v, perSecond)
		return err
	},
	keyDowntime:  func(p *Progress, v string) (err error) { p.Downtime, err = time.ParseDuration(v); return err },
	keyIteration: func(p *Progress, v string) (err error) { p.Iteration, err = strconv.ParseUint(v, 10, 64); return err },
	keyThrottle: func(p *Progress, v string) (err error) {
		p.Throttle, err = strconv.Atoi(strings.TrimSuffix(v, "%"))
		return err
	},
}

// parseBytes reads a number of bytes that has that end.
func parseBytes(v, end string) (uint64, error) {
	number, found := strings.CutSuffix(v, end)
	if !found {
		return 0, fmt.Errorf("%q does not end in %s: %w", v, end, ErrInvalid)
	}
	unit := uint64(1)
	for _, u := range []struct {
		name  string
		bytes uint64
	}{{"Ki", 1 << 10}, {"Mi", 1 << 20}} {
		if n, has := strings.CutSuffix(number, u.name); has {
			number, unit = n, u.bytes
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err == nil && n > (1<<64-1)/unit {
		err = fmt.Errorf("%q is more than can be: %w", v, ErrInvalid)
	}
	return n * unit, err
}
