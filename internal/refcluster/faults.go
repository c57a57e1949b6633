// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"github.com/virtloom/virtloom/domain/plan"
)

// faultVariable is the environment variable with the socket to which an agent built with the tag faultpoints reports its steps.
const faultVariable = "VIRTLOOM_FAULTPOINTS"

// Step is a point in a live migration that an agent has reached, where it waits.
type Step struct {
	// Node is the node of the agent, VMI is namespace/name.
	Node, VMI string
	// Step is the step that was reached.
	Step plan.MigrationStep
}

// Faults receives every step of a migration that an agent reaches, and lets a test interfere there.
// Safe for concurrent use.
type Faults struct {
	listener net.Listener

	mu    sync.Mutex
	at    Step
	act   func()
	after chan struct{}
	seen  []Step
}

// newFaults listens in dir.
func newFaults(dir string) (*Faults, error) {
	path := filepath.Join(dir, "faults")
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("refcluster: faults: %w", err)
	}
	f := &Faults{listener: l}
	go f.serve()
	return f, nil
}

func (f *Faults) path() string { return f.listener.Addr().String() }

// Close stops listening; waiting agents continue.
func (f *Faults) Close() error {
	if err := f.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("refcluster: faults: %w", err)
	}
	return nil
}

func (f *Faults) serve() {
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		go f.answer(c)
	}
}

// answer lets an agent go on, which has been killed meanwhile if that was the act.
func (f *Faults) answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	line, err := bufio.NewReader(c).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 3 {
		return
	}
	f.reached(Step{Node: words[0], VMI: words[1], Step: plan.MigrationStep(words[2])})
	// The agent may have been killed.
	_, _ = c.Write([]byte("go on\n"))
}

func (f *Faults) reached(s Step) {
	f.mu.Lock()
	f.seen = append(f.seen, s)
	act, after := f.act, f.after
	hit := act != nil && f.at == s
	if hit {
		f.act = nil
	}
	f.mu.Unlock()
	if hit {
		act()
		close(after)
	}
}

// At calls act once, when the step is reached next, while the agent waits there. The channel it
// returns is closed after that. It replaces the act of an earlier At.
func (f *Faults) At(s Step, act func()) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.act, f.after = s, act, make(chan struct{})
	return f.after
}

// Never cancels At.
func (f *Faults) Never() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act = nil
}

// Seen returns the steps of a VMI that were reached so far, in order.
func (f *Faults) Seen(vmi string) []Step {
	f.mu.Lock()
	defer f.mu.Unlock()
	var of []Step
	for _, s := range f.seen {
		if s.VMI == vmi {
			of = append(of, s)
		}
	}
	return of
}
