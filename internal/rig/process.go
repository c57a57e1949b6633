// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// probeInterval is the pause between two looks at something that is about to become ready.
const probeInterval = 20 * time.Millisecond

// logTail is how much of a log an error carries.
const logTail = 2 << 10

// process is a program that the rig started: in a session of its own, known to the watchdog, with
// its output in a file. Its methods are safe for concurrent use.
type process struct {
	name    string
	cmd     *exec.Cmd
	started time.Time     // or a moment before
	log     string        // path of its log, "" if the caller took its output elsewhere
	done    chan struct{} // closed when it has ended
	err     error         // how it ended; read after done only
}

// spawn starts cmd as a process of the rig. Unless set already, its output goes to the log file
// called after name. The process leads a session, so that a signal from a terminal does not reach
// it and its whole group can be killed; it carries the rig's mark in its environment.
func (r *Rig) spawn(name string, cmd *exec.Cmd) (*process, error) {
	return r.spawnBy(name, cmd, cmd.Start)
}

// spawnBy is spawn for a cmd that is started in another way than by cmd.Start.
func (r *Rig) spawnBy(name string, cmd *exec.Cmd, start func() error) (*process, error) {
	p := &process{name: name, cmd: cmd, started: time.Now(), done: make(chan struct{})}
	if cmd.Stdout == nil && cmd.Stderr == nil {
		p.log = filepath.Join(r.logDir(), name+".log")
		out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, markVariable+"="+r.dir)
	if err := start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	watchErr := r.watchdog.Add(cmd.Process.Pid)
	go p.wait(r.watchdog)
	r.mu.Lock()
	r.processes = append(r.processes, p)
	r.mu.Unlock()
	if watchErr != nil && p.running() {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, watchErr), p.stop(0))
	}
	return p, nil
}

// wait reaps the process and publishes its end.
func (p *process) wait(w *watchdog) {
	p.err = p.cmd.Wait()
	// An error means that the watchdog is gone, and with it the need to inform it.
	_ = w.Forget(p.cmd.Process.Pid)
	close(p.done)
}

// Pid is the number of the process.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ended describes the end of the process and what it said last. Call it after Done.
func (p *process) ended() error {
	cause := p.err
	if cause == nil {
		cause = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended: %w%s", p.name, cause, p.tail())
}

// tail is the end of the log, set off for use at the end of an error.
func (p *process) tail() string {
	if p.log == "" {
		return ""
	}
	text, err := readTail(p.log, logTail)
	if err != nil || len(text) == 0 {
		return "\n(nothing in " + p.log + ")"
	}
	return "\nend of " + p.log + ":\n" + text
}

// forget drops a process that has been ended in another way than by stop.
func (r *Rig) forget(p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = slices.DeleteFunc(r.processes, func(have *process) bool { return have == p })
}

// stop ends the process and its group: SIGTERM if it has grace left, then SIGKILL. It returns when
// the process has been reaped.
func (p *process) stop(grace time.Duration) error {
	if grace > 0 && p.running() {
		if err := p.signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-p.done:
		case <-time.After(grace):
		}
	}
	err := p.signal(syscall.SIGKILL)
	<-p.done
	return err
}

// signal reaches the whole process group; that no process is left in it is no error.
func (p *process) signal(s syscall.Signal) error {
	if err := syscall.Kill(-p.Pid(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s (process %d): %w", p.name, p.Pid(), err)
	}
	return nil
}

// waitReady calls probe until it succeeds. It gives up when ctx ends or when the process does; the
// error then carries the last answer of probe and the end of the log.
func (p *process) waitReady(ctx context.Context, probe func(context.Context) error) error {
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w)%s", p.name, context.Cause(ctx), err, p.tail())
		case <-time.After(probeInterval):
		}
	}
}

// readTail is the last whole lines of a file, about max bytes of them.
func readTail(path string, most int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	skip := max(0, info.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(f, skip, most))
	if err != nil {
		return "", err
	}
	if skip > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return strings.TrimRight(string(text), "\n"), nil
}
