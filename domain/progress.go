// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

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

// String returns the progress on one line, such as
//
//	processed=142Mi remaining=114Mi total=256Mi rate=34Mi/s dirty=12Mi/s downtime=120ms iteration=2 throttle=20% eta=6s
//
// Bytes are rounded down to whole MiB, or to the next smaller unit below one; the downtime
// is in milliseconds. Zero values other than bytes are omitted. eta is Progress.left of
// the rounded numbers, in seconds, rounded up. [ParseProgress] parses it.
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
	if left, known := p.left(); known {
		put(keyETA, strconv.FormatInt(int64((left+time.Second-1)/time.Second), 10)+"s")
	}
	return b.String()
}

const perSecond = "/s"

// rounded returns the progress with the precision of its text.
func (p Progress) rounded() Progress {
	for _, n := range []*uint64{&p.Processed, &p.Remaining, &p.Total, &p.BytesPerSecond, &p.DirtyBytesPerSecond} {
		_, unit := unitOf(*n)
		*n -= *n % unit
	}
	p.Downtime = p.Downtime.Truncate(time.Millisecond)
	return p
}

// unitOf returns the unit in which a number of bytes is written.
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

// ParseProgress parses the text of [Progress.String]: the progress of an active migration,
// with the precision of the text. Unknown keys are ignored. The error names the key with
// the invalid value and wraps [ErrInvalid] or the error of the standard library.
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

// progressKeys holds the parser of each key.
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

// parseBytes parses a number of bytes with that suffix.
func parseBytes(v, suffix string) (uint64, error) {
	number, found := strings.CutSuffix(v, suffix)
	if !found {
		return 0, fmt.Errorf("%q has no suffix %s: %w", v, suffix, ErrInvalid)
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
		err = fmt.Errorf("%q is out of range: %w", v, ErrInvalid)
	}
	return n * unit, err
}
