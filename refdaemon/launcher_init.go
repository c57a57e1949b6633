// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// passedOn are the signals that the first process of a Pod forwards to its program.
var passedOn = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// endedWith is the exit code of a program that ran in place of this one and reported its errors
// itself.
type endedWith int

// Error implements error.
func (c endedWith) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// beInit runs as the first process of a Pod, to which the kernel reparents orphans: QEMU, after its
// libvirt daemon was restarted. It runs this program as a child and only reaps, so it takes no
// child from code that waits for one. It exits with the program, and the Pod with it.
func beInit(args []string) error {
	signals := make(chan os.Signal, len(passedOn))
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	p, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return fmt.Errorf("run the launcher as a child process: %w", err)
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

// reap reaps children and reparented orphans until the main child has exited.
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
			return endedWith(128 + int(st.Signal())) // as in shells
		case st.Exited() && st.ExitStatus() != 0:
			return endedWith(st.ExitStatus())
		case st.Exited():
			return nil
		}
	}
}
