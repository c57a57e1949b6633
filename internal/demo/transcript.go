// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// eraseLine empties the line of a terminal that the cursor is on.
const eraseLine = "\r\x1b[K"

// transcript is what the demo prints, a line at a time, without control characters but for those of the progress bar, and what it has
// checked.
type transcript struct {
	began    time.Time
	terminal bool // out is one

	mu  sync.Mutex
	out io.Writer
	bar string // what the last line of a terminal shows; empty for nothing
	// verdicts are the lines of the summary.
	verdicts []verdict
}

// verdict is one thing the demo promised, and whether it was seen; or, with a mark of its own, how long it took.
type verdict struct {
	mark, text string
}

// The marks of verdicts in the summary.
const (
	seen     = "ok    "
	unseen   = "FAILED"
	measured = "took  "
)

// isTerminal reports whether a progress bar can be redrawn there.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (t *transcript) print(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar == "" {
		_, _ = fmt.Fprintf(t.out, format+"\n", args...)
		return
	}
	_, _ = fmt.Fprintf(t.out, eraseLine+format+"\n"+t.bar, args...)
}

// report prints a line of the timeline: when, what object, what happened, why.
func (t *transcript) report(object, what, why string) {
	line := fmt.Sprintf("%7.2fs  %-34s %s", time.Since(t.began).Seconds(), object, what)
	if why != "" {
		line += " - " + why
	}
	t.print("%s", printable(line))
}

// printable keeps control characters of others off the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

func (t *transcript) heading(title string) { t.print("\n== %s", title) }

// promise records whether something promised was seen.
func (t *transcript) promise(ok bool, format string, args ...any) error {
	v := verdict{seen, fmt.Sprintf(format, args...)}
	if !ok {
		v.mark = unseen
	}
	t.judge(v)
	if !ok {
		return errors.New("not seen: " + v.text)
	}
	t.report("demo", "checked", v.text)
	return nil
}

// measure records how long something took.
func (t *transcript) measure(format string, args ...any) {
	v := verdict{measured, fmt.Sprintf(format, args...)}
	t.judge(v)
	t.report("demo", "measured", v.text)
}

func (t *transcript) judge(v verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verdicts = append(t.verdicts, v)
}

func (t *transcript) summary(err error) {
	t.print("\n== Summary")
	for _, v := range t.verdicts {
		t.print("  %s  %s", v.mark, v.text)
	}
	if err == nil {
		t.print("Everything was seen, in %.1f seconds.", time.Since(t.began).Seconds())
	}
}

// draw replaces the bar in the last line of a terminal; an empty text takes it away.
func (t *transcript) draw(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.terminal || text == t.bar {
		return
	}
	t.bar = text
	_, _ = fmt.Fprint(t.out, eraseLine+text)
}
