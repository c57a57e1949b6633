// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "embed"
)

// watchdogScript is what the watchdog runs; its head explains the lines it reads.
//
//go:embed watchdog.sh
var watchdogScript string

// markVariable is the environment variable that every process of a rig carries, with the folder of
// the rig as its value. The watchdog finds by it what was started but never reported.
const markVariable = "VIRTLOOM_RIG"

// watchdogExit is how long close waits for the watchdog to end by itself.
const watchdogExit = 5 * time.Second

// watchdog is a shell in a session of its own that outlives the process that started it. It learns
// over a pipe what belongs to the rig. The write end of that pipe is held by this process alone, so
// its end, however it comes, is the end of the pipe: the watchdog then kills and removes everything
// it was given. What it learns is in a journal as well, see reap. Its methods are safe for concurrent use.
type watchdog struct {
	cmd     *exec.Cmd
	journal *os.File

	mu   sync.Mutex
	pipe io.WriteCloser // nil once closed
}

// startWatchdog starts a watchdog for the processes marked with mark, with its journal in the folder.
func startWatchdog(mark, journals string) (*watchdog, error) {
	journal, err := newJournal(journals, filepath.Base(mark))
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", err), discard(journal))
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "virtloom-watchdog")
	cmd.Dir = "/"
	cmd.Stdin = read
	cmd.ExtraFiles = []*os.File{journal} // so that it is locked for as long as the watchdog lives
	cmd.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", err), write.Close(), discard(journal))
	}
	w := &watchdog{cmd: cmd, journal: journal, pipe: write}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	err = errors.Join(err, w.send("boot", strings.TrimSpace(string(boot))), w.AddDir(journal.Name()), w.send("mark", markVariable+"="+mark))
	if err != nil {
		return nil, errors.Join(err, w.close(true))
	}
	return w, nil
}

// Add makes the watchdog kill the process pid, and the process group it leads, when this process
// ends. The start time of the process goes along, so that a reused number is never killed.
func (w *watchdog) Add(pid int) error {
	started, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("watchdog: process %d: %w", pid, err)
	}
	return w.send("pid", strconv.Itoa(pid)+" "+started)
}

// Forget takes back Add, for a process that has ended.
func (w *watchdog) Forget(pid int) error { return w.send("forget", strconv.Itoa(pid)) }

// AddDir makes the watchdog remove a folder with all its content after the processes are gone.
func (w *watchdog) AddDir(dir string) error { return w.send("dir", dir) }

// AddCleanup makes the watchdog run a command after the processes are gone and before the folders
// are removed, the command added last first. It is for what the kernel does not undo with the last
// process, such as a network interface; it must do no harm when there is nothing left to undo.
func (w *watchdog) AddCleanup(argv ...string) error {
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return w.send("run", strings.Join(quoted, " "))
}

// AddCgroup makes the watchdog remove the control groups of that name, in each hierarchy, when their processes are gone.
func (w *watchdog) AddCgroup(name string) error { return w.send("cgroup", name) }

// Pid is the watchdog's process.
func (w *watchdog) Pid() int { return w.cmd.Process.Pid }

// close ends the watchdog. If clean, it leaves alone everything it was given; otherwise it does
// what it does when this process dies.
func (w *watchdog) close(clean bool) error {
	var err error
	if clean {
		err = w.send("bye", "")
	}
	w.mu.Lock()
	if w.pipe != nil {
		err = errors.Join(err, w.pipe.Close())
		w.pipe = nil
	}
	w.mu.Unlock()

	ended := make(chan error, 1)
	go func() { ended <- w.cmd.Wait() }()
	select {
	case e := <-ended:
		return errors.Join(err, e, discard(w.journal))
	case <-time.After(watchdogExit):
		return errors.Join(err, fmt.Errorf("watchdog: still there after %v", watchdogExit), w.cmd.Process.Kill())
	}
}

func (w *watchdog) send(verb, argument string) error {
	if strings.ContainsAny(argument, "\n\x00") {
		return fmt.Errorf("watchdog: %s: %q has a line break", verb, argument)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pipe == nil {
		return fmt.Errorf("watchdog: %s: dismissed already", verb)
	}
	line := verb + " " + argument + "\n"
	for _, to := range []io.Writer{w.journal, w.pipe} {
		if _, err := io.WriteString(to, line); err != nil {
			return fmt.Errorf("watchdog: %s: %w", verb, err)
		}
	}
	return nil
}

// startTime is when the process was started, in the kernel's ticks since boot (field 22 of stat).
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	const afterName = 22 - 3
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) <= afterName {
		return "", fmt.Errorf("unexpected content of stat: %q", stat)
	}
	return fields[afterName], nil
}
