// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/refdaemon/lines"
)

const (
	// longestLine bounds a line of the container's log in bytes.
	longestLine = 4 << 10
	// Every trimPause, files of logs that take more than mostLog bytes are cut to the last keptLog.
	trimPause        = 5 * time.Second
	mostLog, keptLog = 4 << 20, 1 << 20
)

// guestLogs are the logs of a guest and of what runs it.
type guestLogs struct {
	to io.Writer
	// followed are files whose lines go to the container's log, by their prefix there. The guest's console has a
	// container of its own.
	followed map[string]string
	// bounded are files that grow, the former included.
	bounded []string
	log     logr.Logger

	mu sync.Mutex // a line is written at once
}

// logs returns the logs of the launcher's guest.
func (o *launcherOptions) logs() *guestLogs {
	dir := "/var/log/libvirt/qemu"
	tpm := "/var/log/swtpm/libvirt/qemu"
	if o.session() {
		dir = filepath.Join(os.Getenv("XDG_CACHE_HOME"), "libvirt", "qemu", "log")
		tpm = dir
	}
	l := &guestLogs{to: os.Stderr, log: o.log, followed: map[string]string{
		"qemu":  filepath.Join(dir, o.guest.Domain()+".log"),
		"swtpm": filepath.Join(tpm, o.guest.Domain()+"-swtpm.log"),
	}}
	for _, path := range l.followed {
		l.bounded = append(l.bounded, path)
	}
	for _, name := range []string{convert.SerialLog, convert.FirmwareLog} {
		l.bounded = append(l.bounded, filepath.Join(o.guestDir(), name))
	}
	return l
}

// follow passes lines on, and bounds files, until ctx ends.
func (l *guestLogs) follow(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for prefix, path := range l.followed {
		all.Go(func() {
			f := lines.Follower{Path: path, Longest: longestLine, Line: l.line(prefix)}
			if err := f.Run(ctx); err != nil {
				l.log.Error(err, "Following a log failed", "path", path)
			}
		})
	}
	tick := time.NewTicker(trimPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.trim()
		case <-ctx.Done():
			return
		}
	}
}

// trim bounds the files. A guest must not fill the node's disk by talking.
func (l *guestLogs) trim() {
	for _, path := range l.bounded {
		if _, err := lines.Trim(path, mostLog, keptLog); err != nil && !errors.Is(err, os.ErrNotExist) {
			l.log.Error(err, "Trimming a log failed", "path", path)
		}
	}
}

// line returns a function that writes lines with a prefix.
func (l *guestLogs) line(prefix string) func([]byte) {
	return func(line []byte) {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, _ = fmt.Fprintf(l.to, "%s: %s\n", prefix, printable(line)) // an error has no other place to go to
	}
}

// printable returns a line with what is no text in hexadecimal: what programs say on behalf of a guest may be read in a terminal.
func printable(line []byte) string {
	var out strings.Builder
	for len(line) > 0 {
		r, n := utf8.DecodeRune(line)
		if r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			out.Write(line[:n])
		} else {
			fmt.Fprintf(&out, `\x%x`, line[:n])
		}
		line = line[n:]
	}
	return out.String()
}

// pipe returns a file whose lines are passed on with the prefix, until all processes that have it close it.
func (l *guestLogs) pipe(prefix string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() {
		defer r.Close()
		if err := lines.Split(r, longestLine, l.line(prefix)); err != nil {
			l.log.Error(err, "Reading a log failed", "of", prefix)
		}
	}()
	return w, nil
}
