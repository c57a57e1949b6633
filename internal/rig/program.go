// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os/exec"
	"time"
)

// Program is a program of the caller's that lives and dies with the rig. Its
// methods are safe for concurrent use.
type Program struct {
	p *process
}

// Run starts a program as one of the rig: its output goes to the log file
// called after name, and it ends when the rig, or the process that started the
// rig, does.
func (r *Rig) Run(name string, cmd *exec.Cmd) (*Program, error) {
	p, err := r.spawn(name, cmd)
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	return &Program{p: p}, nil
}

// Pid is the number of the process.
func (p *Program) Pid() int { return p.p.Pid() }

// Done is closed when the program has ended.
func (p *Program) Done() <-chan struct{} { return p.p.Done() }

// Log is the path of the program's log.
func (p *Program) Log() string { return p.p.log }

// Kill ends the program at once, as a crash would, and waits until it is gone.
func (p *Program) Kill() error { return p.p.stop(0) }

// Stop asks the program to end and kills it after grace.
func (p *Program) Stop(grace time.Duration) error { return p.p.stop(grace) }

// Ended describes how the program ended and what it said last. Call it after
// Done.
func (p *Program) Ended() error { return p.p.ended() }
