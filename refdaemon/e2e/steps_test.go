// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
)

// victims are what is killed at a step, by name: what belongs to the node that has reached it, or what
// is at the other end.
var victims = map[string]func(*scene, string) (restart func()){
	"agent":          func(s *scene, node string) func() { return s.killAgent(node) },
	"other-agent":    func(s *scene, node string) func() { return s.killAgent(s.other(node)) },
	"libvirtd":       func(s *scene, node string) func() { return s.killLibvirtd(node) },
	"other-libvirtd": func(s *scene, node string) func() { return s.killLibvirtd(s.other(node)) },
}

func (s *scene) killAgent(node string) func() {
	s.c.Forget(shared.agents[node])
	if err := shared.agents[node].Kill(); err != nil {
		s.Error(err)
	}
	return func() {
		var err error
		shared.agents[node], err = s.c.StartAgent(s.c.Node(node))
		must(s.T, err)
	}
}

func (s *scene) killLibvirtd(node string) func() {
	n := s.c.Node(node)
	if err := n.KillLibvirtd(s.Context()); err != nil {
		s.Error(err)
	}
	return func() { must(s.T, n.StartLibvirtd(s.Context())) }
}

// other is the node at the other end of a move.
func (s *scene) other(node string) string {
	for _, n := range s.c.Nodes {
		if n.Name() != node {
			return n.Name()
		}
	}
	return ""
}

// lead makes a migration that comes by the step: some are reached only when it does not go well.
func (s *scene) lead(step plan.MigrationStep) (then func(*v1.VirtualMachineInstanceMigration)) {
	nothing := func(*v1.VirtualMachineInstanceMigration) {}
	switch step {
	case plan.SourceDisrupting:
		yes, soon := true, int64(3)
		slowly(s.T, s.c, func(m *v1.MigrationConfiguration) {
			rate := resource.MustParse("8Mi")
			m.BandwidthPerMigration, m.AllowPostCopy, m.CompletionTimeoutPerGiB = &rate, &yes, &soon
		})
	case plan.SourceReverted:
		slowly(s.T, s.c)
		return func(m *v1.VirtualMachineInstanceMigration) {
			s.awaitMoving()
			must(s.T, s.c.Client.Delete(s.Context(), m.DeepCopy()))
		}
	}
	return nothing
}

// kill is a step at which one of the victims is killed.
type kill struct {
	step   plan.MigrationStep
	victim string
}

// sample is what continuous integration kills: the programs of either node while a guest moves, and agents where an effect
// is not stored. All others decide by the same stored state, which internal/explore searches; "make nightly" kills at each of them.
var sample = []kill{
	{plan.SourceMoving, "libvirtd"}, {plan.SourceMoving, "other-libvirtd"}, {plan.SourceMoving, "other-agent"},
	{plan.SourceReturned, "agent"}, {plan.TargetListening, "agent"}, {plan.TargetArrived, "agent"},
}

// TestMigration_KilledAtEveryStep: at each step of either node its agent or its libvirt
// daemon, or one of the other node's, is killed and started again.
func TestMigration_KilledAtEveryStep(t *testing.T) {
	c := cluster(t)
	kills := sample
	if *full {
		kills = nil
		for _, step := range plan.MigrationSteps() {
			for _, victim := range slices.Sorted(maps.Keys(victims)) {
				kills = append(kills, kill{step, victim})
			}
		}
	}
	// One guest goes through all of it, as long as it does.
	var s *scene
	for i, k := range kills {
		name := strings.ReplaceAll(string(k.step), "/", "-") + "-" + k.victim
		if s == nil {
			s = boot(t, c, newGuest(t, fmt.Sprintf("killed-%d", i), busy))
		}
		inner := *s
		if !t.Run(name, func(t *testing.T) {
			inner.T = t
			inner.killedAt(name, k.step, victims[k.victim])
		}) {
			s = nil
		}
	}
}

func (s *scene) killedAt(name string, step plan.MigrationStep, kill func(*scene, string) func()) {
	s.await(v1.Running)
	home := s.vmi.Status.NodeName
	node := home
	if strings.HasPrefix(string(step), "target/") {
		node = s.other(home)
	}
	then := s.lead(step)
	var restart func()
	defer s.c.Faults.Never()
	hit := s.c.Faults.At(refcluster.Step{Node: node, VMI: s.key.String(), Step: step}, func() { restart = kill(s, node) })
	m := s.migrate(name)
	then(m)
	select {
	case <-hit:
	case <-time.After(patience):
		s.Fatalf("the step was not reached; those that were: %v", s.c.Faults.Seen(s.key.String()))
	}
	restart()
	up := time.Now()
	s.atRest()
	s.Logf("at rest %v after everything was up again", time.Since(up).Round(10*time.Millisecond))
	s.single()
	s.beats(s.vmi.Status.NodeName, 5)
	s.unbroken()
	have := &v1.VirtualMachineInstanceMigration{}
	if err := s.c.Client.Get(s.Context(), client.ObjectKeyFromObject(m), have); client.IgnoreNotFound(err) != nil {
		s.Error(err)
	} else if err == nil {
		s.awaitEnd(m)
	}
}

// atRest waits until the status is true: the guest runs where it says, and no move is under way.
func (s *scene) atRest() {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, "the guest to be at rest", func(ctx context.Context) (err error) {
		if s.vmi, err = s.c.VMI(ctx, s.key); err != nil {
			return err
		}
		l, err := handoff.Of(s.vmi)
		if err != nil {
			return err
		}
		state := s.vmi.Status.MigrationState
		if l.State != handoff.Owned || l.Holder != s.vmi.Status.NodeName || s.vmi.Status.Phase != v1.Running || state == nil || !state.Completed {
			return fmt.Errorf("it is %s on %s, the lease %+v, the migration %+v", s.vmi.Status.Phase, s.vmi.Status.NodeName, l, state)
		}
		names, err := s.c.Domains(ctx)
		if err == nil && !slices.Contains(names, l.Holder+"/"+domain.Name(s.key.Namespace, s.key.Name)) {
			err = fmt.Errorf("there are the domains %v", names)
		}
		return err
	}))
}
