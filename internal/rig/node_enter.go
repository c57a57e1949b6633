// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// allNamespaces are those of a node, but for one of cgroups.
const allNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Run starts a program on the node as one of the rig, see Rig.Run: in all namespaces of the node. It
// dies with the node at the latest.
//
// The program is a child of this process, with no other in between: it gets the signals that
// Program sends, and its number is its own. SysProcAttr.Pdeathsig must not be set, it would kill
// the program at once.
func (n *machine) Run(name string, cmd *exec.Cmd) (*Program, error) {
	p, err := n.fabric.rig.spawnBy(name, cmd, func() error { return n.startIn(cmd) })
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return &Program{p: p}, nil
}

// startIn starts cmd in the node's namespaces. There is no way to name them to fork, so a
// thread of this process moves there, starts the program and ends.
func (n *machine) startIn(cmd *exec.Cmd) error {
	if cmd.Dir == "" {
		// Moving to another mount namespace leads to its root folder.
		dir, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("on node %s: %w", n.name, err)
		}
		cmd.Dir = dir
	}
	err := onThreadThatEnds(func() error {
		if err := moveThread(n.Pid(), n.namespaces); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("%s on node %s: %w", cmd.Path, n.name, err)
	}
	return nil
}

// inNetworkOf calls f on a thread in the network of the process pid.
func inNetworkOf(pid int, f func() error) error {
	return onThreadThatEnds(func() error {
		if err := moveThread(pid, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThreadThatEnds calls f on a thread that does nothing else and ends with it.
func onThreadThatEnds(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread of a process never ends, and what is in /proc/self comes from it. As long
			// as this goroutine holds it, another one gets another thread.
			err := onThreadThatEnds(f)
			runtime.UnlockOSThread()
			result <- err
			return
		}
		// Never unlocked: the runtime then ends the thread with this function instead of using it again.
		result <- f()
	}()
	return <-result
}

// moveThread moves the calling thread to namespaces of the process pid. For the PID namespace this
// means that its children will be born there.
func moveThread(pid, namespaces int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(process)
	// A thread that shares its working directory with others may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the working directory of the process: %w", err)
	}
	if err := unix.Setns(process, namespaces); err != nil {
		return fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
	}
	return nil
}

// Command is like exec.CommandContext for a short program on the node; see Run for where. It can be
// used like any other Cmd, but its process is nsenter, which passes on how the program ended and no
// signal: whatever ends nsenter kills the program.
func (n *machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(n.Pid()), "--mount", "--uts", "--ipc", "--net", "--pid"}
	if n.namespaces&unix.CLONE_NEWCGROUP != 0 {
		enter = append(enter, "--cgroup")
	}
	return exec.CommandContext(ctx, "nsenter",
		slices.Concat(enter, []string{"--", "setpriv", "--pdeathsig", "KILL", "--", name}, args)...)
}
