// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Namespaces of a node that a program can be started in.
const (
	agentNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID
	allNamespaces   = agentNamespaces | unix.CLONE_NEWNET
)

// Start starts cmd on the node, as cmd.Start would on the machine: in the mount, UTS, IPC and PID
// namespaces of the node, but in the network of the machine, where the API server is. cmd.Process is
// the program itself, so a signal sent to it reaches the program. It dies with the node.
//
// The caller has to call cmd.Wait. SysProcAttr.Pdeathsig must not be set: it would kill the program
// at once.
func (n *HypervisorNode) Start(cmd *exec.Cmd) error { return n.startIn(cmd, agentNamespaces) }

// startIn starts cmd in some of the node's namespaces. There is no way to name them to fork, so a
// thread of this process moves there, starts the program and ends.
func (n *HypervisorNode) startIn(cmd *exec.Cmd, namespaces int) error {
	if cmd.Dir == "" {
		// Moving to another mount namespace leads to its root folder.
		dir, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("on node %s: %w", n.name, err)
		}
		cmd.Dir = dir
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, markVariable+"="+n.fabric.rig.dir)
	result := make(chan error)
	go func() {
		// Never unlocked: the runtime then ends the thread with this function instead of using it again.
		runtime.LockOSThread()
		err := moveThread(n.Pid(), namespaces)
		if err == nil {
			err = cmd.Start()
		}
		result <- err
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("start %s on node %s: %w", cmd.Path, n.name, err)
	}
	return nil
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

// Command is like exec.CommandContext for a program that runs on the node; see Start for where. It
// can be used like any other Cmd, but its process is nsenter, which passes on how the program
// ended and no signal: whatever ends nsenter kills the program at once. Use Start for a program
// that is to end gracefully.
func (n *HypervisorNode) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", strconv.Itoa(n.Pid()), "--mount", "--uts", "--ipc", "--pid", "--",
		"setpriv", "--pdeathsig", "KILL", "--", name,
	}, args...)...)
}
