// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bareRig can start processes and nothing else.
func bareRig(t *testing.T) *Rig {
	t.Helper()
	r := &Rig{dir: filepath.Join(t.TempDir(), "a rig"), dataDir: filepath.Join(t.TempDir(), "data")}
	if err := os.MkdirAll(r.logDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.watchdog, err = startWatchdog(r.dir, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return r
}

func mustSpawn(t *testing.T, r *Rig, name, script string) *process {
	t.Helper()
	p, err := r.spawn(name, exec.Command("/bin/sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestWatchdog_OwnerGone(t *testing.T) {
	r := bareRig(t)
	spoken := filepath.Join(t.TempDir(), "it's done")
	order := filepath.Join(t.TempDir(), "order")
	must(t,
		r.watchdog.AddDir(r.dir),
		r.watchdog.AddCleanup("touch", spoken),
		r.watchdog.AddCleanup("sh", "-c", "echo second >>"+order),
		r.watchdog.AddCleanup("sh", "-c", "echo first >>"+order),
	)
	// The last of the group to end closes the pipe.
	held, holder, err := os.Pipe()
	must(t, err)
	family := exec.Command("/bin/sh", "-c", "sleep 1000 & sleep 1000")
	family.ExtraFiles = []*os.File{holder}
	p, err := r.spawn("family", family)
	must(t, err, holder.Close())
	stranger := exec.Command("sleep", "1000")
	must(t, stranger.Start(), r.watchdog.send("pid", pidWithOtherStart(t, stranger.Process.Pid)))

	must(t, r.watchdog.close(false))

	<-p.Done()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v, want SIGKILL", p.cmd.ProcessState)
	}
	must(t, held.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := held.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("group of the process: %v, want it gone", err)
	}
	if exists(r.dir) {
		t.Error("the folder is still there")
	}
	if !exists(spoken) {
		t.Error("the command with a quote in its argument did not run")
	}
	if text, err := os.ReadFile(order); err != nil || string(text) != "first\nsecond\n" {
		t.Errorf("commands ran as %q, %v; want the last added first", text, err)
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that took over a number was killed: %v", err)
	}
	must(t, stranger.Process.Kill())
	if err := stranger.Wait(); err == nil {
		t.Error("the stranger ended by itself")
	}
}

// pidWithOtherStart is what the watchdog would know if the process had taken over the number.
func pidWithOtherStart(t *testing.T, pid int) string {
	t.Helper()
	started, err := startTime(pid)
	must(t, err)
	return fmt.Sprintf("%d %s0", pid, started)
}

func TestWatchdog_Dismissed(t *testing.T) {
	r := bareRig(t)
	must(t, r.watchdog.AddDir(r.dir))
	p := mustSpawn(t, r, "sleeper", "sleep 1000")
	must(t, r.watchdog.close(true))
	if !p.running() || !exists(r.dir) {
		t.Errorf("running %v, folder %v: want both", p.running(), exists(r.dir))
	}
	must(t, p.stop(0))
	if err := r.watchdog.AddDir("/nowhere"); err == nil {
		t.Error("a dismissed watchdog still listens")
	}
}

func TestWatchdog_LineBreaks(t *testing.T) {
	r := bareRig(t)
	if err := r.watchdog.AddDir("/tmp/x\nrun rm -rf /"); err == nil {
		t.Error("a line break in a path was taken")
	}
	must(t, r.watchdog.close(true))
}

func TestProcess_GracePeriod(t *testing.T) {
	r := bareRig(t)
	p := mustSpawn(t, r, "polite", `trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done`)
	must(t, p.waitReady(t.Context(), func(context.Context) error {
		text, err := readTail(p.log, logTail)
		if err == nil && text != "ready" {
			return errors.New("not yet")
		}
		return err
	}))
	must(t, p.stop(time.Minute))
	if code := p.cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	if err := p.ended(); !strings.Contains(err.Error(), "bye") || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("%v: want its last words and its status", err)
	}
	must(t, r.watchdog.close(true))
}

func TestReadTail_WholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(path, []byte("first line\nsecond line\nthird\n"), 0o600))
	for most, want := range map[int64]string{100: "first line\nsecond line\nthird", 20: "second line\nthird", 8: "third"} {
		if got, err := readTail(path, most); err != nil || got != want {
			t.Errorf("tail of %d: %q, %v; want %q", most, got, err, want)
		}
	}
}
