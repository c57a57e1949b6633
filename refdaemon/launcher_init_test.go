// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// podRole makes the test binary a Pod: the first process of its PID namespace runs itself
// once more, which then does what the variable says.
const podRole = "VIRTLOOM_TEST_POD"

// leftovers are folders that several tests use.
var leftovers []string

func TestMain(m *testing.M) {
	role := os.Getenv(podRole)
	switch {
	case role == "":
		code := m.Run()
		for _, dir := range leftovers {
			_ = os.RemoveAll(dir)
		}
		os.Exit(code)
	case os.Getpid() == 1:
		os.Exit(report(beInit(os.Args), os.Stderr))
	}
	if err := launchers[role](); err != nil {
		fmt.Println(err)
		os.Exit(99)
	}
}

// launchers are programs in the place of a launcher.
var launchers = map[string]func() error{
	"orphans":   leaveOrphans,
	"fails":     func() error { os.Exit(7); return nil },
	"is fine":   func() error { return nil },
	"killed":    func() error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) },
	"signaled":  untilSignaled,
	"contained": serveInContainer,
	"deserted":  func() error { return exec.Command("sh", "-c", "sleep 1000 & echo left").Run() },
}

// leaveOrphans makes orphans, while it runs children of its own that end with a code, and
// returns when all orphans have been reaped: a process that was not still has its number.
func leaveOrphans() error {
	var orphans []int
	for i := range 20 {
		out, err := exec.Command("sh", "-c", "true & echo $!").Output()
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			return err
		}
		orphans = append(orphans, pid)
		var exit *exec.ExitError
		if err := exec.Command("sh", "-c", fmt.Sprintf("exit %d", i+1)).Run(); !errors.As(err, &exit) || exit.ExitCode() != i+1 {
			return fmt.Errorf("a child's code %d was lost: %w", i+1, err)
		}
	}
	for _, pid := range orphans {
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// untilSignaled waits for a signal that was sent to the Pod.
func untilSignaled() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("waiting")
	<-signals
	os.Exit(5)
	return nil
}

func TestInit_ReapsAndExits(t *testing.T) {
	for role, want := range map[string]int{"orphans": 0, "fails": 7, "is fine": 0, "killed": 128 + int(syscall.SIGKILL), "signaled": 5, "deserted": 0} {
		t.Run(role, func(t *testing.T) {
			// The timeout ends the wait for an orphan that is not reaped.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/proc/self/exe")
			cmd.Env = append(os.Environ(), podRole+"="+role)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			var out waitingWriter
			out.at = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
			cmd.Stdout, cmd.Stderr = &out, os.Stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Skipf("no PID namespace can be made here: %v", err)
			}
			if got := cmd.ProcessState.ExitCode(); got != want {
				t.Errorf("it ended with %d, want %d: %s", got, want, out.all.String())
			}
		})
	}
}

// waitingWriter calls at when a program prints that it waits.
type waitingWriter struct {
	all strings.Builder
	at  func()
}

func (o *waitingWriter) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "waiting") {
		o.at()
	}
	return o.all.Write(b)
}
