// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// circumstances lead a migration to a step that it does not reach by itself.
var circumstances = map[plan.MigrationStep]func(*pair, *v1.VMIMConfigurationOptions){
	plan.SourceMoving:   func(p *pair, _ *v1.VMIMConfigurationOptions) { p.a.MigrationTakes(time.Second) },
	plan.TargetDetected: func(p *pair, _ *v1.VMIMConfigurationOptions) { p.a.MigrationTakes(time.Second) },
	plan.SourceDisrupting: func(p *pair, o *v1.VMIMConfigurationOptions) {
		p.a.MigrationTakes(longerThanSoon)
		pausedSoon(o)
	},
	plan.SourceReverted: func(p *pair, _ *v1.VMIMConfigurationOptions) {
		p.a.Inject(memory.Fault{Call: "Migrate", Times: 1, Err: errors.New("not now")})
	},
}

// pausedSoon pauses the guest of a migration that takes longer than three seconds, which gives it
// three more; longerThanSoon is in between.
func pausedSoon(o *v1.VMIMConfigurationOptions) {
	seconds, yes := int64(3), true
	o.CompletionTimeoutPerGiB, o.AllowWorkloadDisruption = &seconds, &yes
}

const longerThanSoon = 4500 * time.Millisecond

// migrate requests a migration with options.
func (p *pair) migrate(t *testing.T, vmi *v1.VirtualMachineInstance, edit func(*v1.VMIMConfigurationOptions)) {
	t.Helper()
	p.step(t, vmi, handoff.Event{Kind: handoff.Prepare, Node: p.b.name, Tag: "job"}, func(vmi *v1.VirtualMachineInstance) {
		askToMove(vmi, p.b, "job")
		o := &v1.VMIMConfigurationOptions{}
		edit(o)
		vmi.Status.MigrationState.VMIMConfigurationOptions = o
	})
}

// TestAgent_KilledAtAnyMigrationStep kills the agent of either node at each of the steps and starts
// another one: then one node runs the guest, and reports it, and nothing is left of it on the
// other.
func TestAgent_KilledAtAnyMigrationStep(t *testing.T) {
	c := newCluster(t)
	for _, step := range plan.MigrationSteps() {
		t.Run(string(step), func(t *testing.T) { killedAt(t, newPair(t, c), step) })
	}
}

func killedAt(t *testing.T, p *pair, step plan.MigrationStep) {
	p.a.MigrationTakes(20 * time.Millisecond)
	doomed, other := p.a, p.b
	if strings.HasPrefix(string(step), "target/") {
		doomed, other = p.b, p.a
	}
	died := doomed.startDoomed(t, step)
	other.start(t)
	vmi := p.create(t, "guest")
	g := p.guard(t, vmi)
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.migrate(t, vmi, func(o *v1.VMIMConfigurationOptions) {
		if lead := circumstances[step]; lead != nil {
			lead(p, o)
		}
	})
	eventually(t, "the agent to die", func() bool {
		select {
		case <-died:
			return true
		default:
			return false
		}
	})
	p.atRest(t, vmi)
	for n, most := range map[*node]int{p.a: 1, p.b: 0} {
		if starts := n.Calls(string(domain.Start)); starts > most {
			t.Errorf("%s was asked %d times to start the guest", n.name, starts)
		}
	}
	g.mayEnd()
	p.finish(t, vmi)
	g.stop()
}

// atRest waits until the migration has ended one way or the other, with a true status.
func (p *pair) atRest(t *testing.T, vmi *v1.VirtualMachineInstance) {
	t.Helper()
	p.until(t, "the migration to end", vmi, func(l handoff.Lease) bool {
		_, ended := l.MoveOutcome("job")
		return ended && l.State == handoff.Owned && vmi.Status.NodeName == l.Holder
	})
	at, from := p.a, p.b
	if vmi.Status.NodeName == p.b.name {
		at, from = p.b, p.a
	}
	p.runsOn(t, vmi, at)
	eventually(t, "nothing to be left on "+from.name, func() bool { return from.empty(vmi) })
	if m := vmi.Status.MigrationState; !m.Completed || m.Failed != (at == p.a) || m.Failed && m.FailureReason == "" {
		t.Errorf("the guest is on %s, and its migration %+v", at.name, m)
	}
	if _, reported := status.ProgressOf(vmi); reported {
		t.Errorf("the migration is over, and the status reports its progress: %+v", vmi.Status.Conditions)
	}
}

// The source's hypervisor resumes the guest because it lacks the acknowledgement: the guest is
// paused there, and ends without having run.
func TestMigration_AnswerLostAtSwitch(t *testing.T) {
	p := newPair(t, newCluster(t))
	p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	g := p.guard(t, vmi)
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.a.Link(p.b.uri()).LoseAnswer()
	p.migrate(t, vmi, func(*v1.VMIMConfigurationOptions) {})
	p.atRest(t, vmi)
	if vmi.Status.NodeName != p.a.name {
		t.Errorf("the guest is on %s, where it has not been let go", vmi.Status.NodeName)
	}
	g.mayEnd()
	p.finish(t, vmi)
	g.stop()
}
