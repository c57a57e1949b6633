// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
)

// chance decides what happens, by a seed alone.
type chance struct{ random *rand.Rand }

func newChance(seed, stream uint64) chance { return chance{rand.New(rand.NewPCG(seed, stream))} }

// choose returns a number below n.
func (c chance) choose(n int) int { return c.random.IntN(n) }

// around returns a time with that mean.
func (c chance) around(mean time.Duration) time.Duration {
	return time.Duration(c.random.ExpFloat64() * float64(mean))
}

// pick chooses one of all by their weights; choose is a number below its argument.
func pick[T any](all []T, weight func(T) int, choose func(int) int) (one T) {
	sum := 0
	for _, one = range all {
		sum += weight(one)
	}
	n := choose(sum)
	for _, one = range all {
		if n -= weight(one); n < 0 {
			break
		}
	}
	return one
}

// incident is something that has gone wrong: what, and what undoes it, after how long; nil if nothing is left to undo. An
// empty word says that it could not go wrong, as with the faults below of no node.
type incident struct {
	what  string
	after time.Duration
	undo  func(context.Context) error
}

// disconnect disconnects the node's hypervisor.
func (c chance) disconnect(n *node, mean time.Duration) incident {
	if n == nil {
		return incident{}
	}
	n.hypervisor.Disconnect()
	return incident{n.name, c.around(mean), func(context.Context) error {
		n.hypervisor.Reconnect()
		return nil
	}}
}

var errByChance = errors.New("it failed by chance")

// failCalls lets the next calls of a kind fail.
func (c chance) failCalls(n *node, after time.Duration) incident {
	if n == nil {
		return incident{}
	}
	verbs := []domain.Verb{domain.Start, domain.Destroy, domain.Undefine, domain.Shutdown, domain.AttachDevice, domain.DetachDevice, domain.SetVCPUs, "Migrate"}
	f := memory.Fault{
		Call: string(verbs[c.choose(len(verbs))]), Times: 1 + c.choose(3), Err: errByChance, AfterEffect: c.choose(2) == 0,
	}
	remove := n.hypervisor.Inject(f)
	return incident{fmt.Sprintf("%d of %s on %s, after effect %v", f.Times, f.Call, n.name, f.AfterEffect), after, func(context.Context) error {
		remove()
		return nil
	}}
}

// breakLink lets the way between two nodes break, at once or at the worst moment of the next migration.
func (c chance) breakLink(from, to *node, mean time.Duration) incident {
	if from == nil || from == to {
		return incident{}
	}
	l, how := from.hypervisor.Link(to.uri()), "now"
	switch c.choose(4) {
	case 0:
		l.Cut()
	case 1:
		how = "at the next switch, when the guest has come"
		l.CutAtSwitch(true)
	case 2:
		how = "at the next switch, before the guest has come"
		l.CutAtSwitch(false)
	default:
		how = "at the next switch, and with it the answer"
		l.LoseAnswer()
	}
	return incident{fmt.Sprintf("from %s to %s, %s", from.name, to.name, how), c.around(mean), func(context.Context) error {
		if to.up {
			l.Restore()
		}
		return nil
	}}
}

// endGuest lets a guest end by itself.
func (c chance) endGuest(ctx context.Context, n *node) incident {
	if n == nil {
		return incident{}
	}
	all, err := n.hypervisor.List(ctx)
	all = slices.DeleteFunc(all, func(s domain.State) bool { return s.Status != domain.StatusRunning })
	if err != nil || len(all) == 0 {
		return incident{}
	}
	name := all[c.choose(len(all))].Name
	if err := n.hypervisor.Apply(ctx, domain.Operation{Verb: domain.Shutdown, Domain: name}); err != nil {
		return incident{}
	}
	return incident{what: name + " on " + n.name}
}
