// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// passedOn are the signals that the first process of a Pod hands to its program.
var passedOn = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// endedWith is how a program has ended that was run in this one's place and has told of
// its errors itself.
type endedWith int

// Error implements error.
func (c endedWith) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// beInit is the first process of a Pod, for which the kernel leaves processes whose
// parents have ended: a guest's QEMU, when its libvirt daemon was started again. It runs
// this program once more and does nothing but to reap them, and so takes no child from
// whoever waits for it. It ends with the program, and the Pod with it.
func beInit(args []string) error {
	signals := make(chan os.Signal, len(passedOn))
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	p, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return fmt.Errorf("run the launcher below the first process: %w", err)
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = p.Signal(s) // it may have ended
			case <-over:
				return
			}
		}
	}()
	return reap(p.Pid)
}

// reap reaps children, also those that the kernel has given to this process, until the one
// that counts has ended.
func reap(main int) error {
	for {
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &st, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the launcher: %w", err)
		case pid != main:
		case st.Signaled():
			return endedWith(128 + int(st.Signal())) // as shells tell it
		case st.Exited() && st.ExitStatus() != 0:
			return endedWith(st.ExitStatus())
		case st.Exited():
			return nil
		}
	}
}
