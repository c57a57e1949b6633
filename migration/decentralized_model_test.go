// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// TestTwoClusters_Model runs both controllers and all between them in random order, with
// synchronizations lost and repeated, migrations deleted, Pods that die and links that are
// cut for good, and checks after each step that the VMI is neither lost nor ended twice.
func TestTwoClusters_Model(t *testing.T) {
	seeds := 1500
	if testing.Short() {
		seeds = 300
	}
	ends := map[string]int{}
	for seed := range seeds {
		m := &model{clusters: newClusters(t, seed%3 == 0), random: rand.New(rand.NewPCG(uint64(seed), 1)), t: t, seed: seed}
		m.run()
		ends[fmt.Sprintf("%s/%s", m.from.Migration.Status.Phase, m.to.Migration.Status.Phase)]++
	}
	t.Logf("ends: %v", ends)
	for _, want := range []string{"Succeeded/Succeeded", "Failed/Failed"} {
		if ends[want] == 0 {
			t.Errorf("no run ended %s: %v", want, ends)
		}
	}
}

type model struct {
	*clusters
	t      *testing.T
	random *rand.Rand
	seed   int
	cut    bool
	// late says that the sender may have waited in vain for a word about its VMI.
	late bool
	log  []string
}

func (m *model) run() {
	for range 120 {
		m.step()
		m.check()
	}
	// Afterwards everybody does what is theirs, and time passes.
	m.cut = m.cut && m.random.IntN(2) == 0
	for range 40 {
		for range 3 {
			m.controllers()
			for _, do := range m.steps() {
				do.do()
			}
		}
		m.check()
		m.advance(20 * time.Minute)
	}
	for range 30 { // beyond the longest bound
		m.controllers()
		for _, do := range m.steps() {
			do.do()
		}
		m.check()
		m.advance(2 * time.Hour)
	}
	m.final()
}

type modelStep struct {
	name string
	do   func()
}

// steps are those of the pair; what is carried is not while the link is cut.
func (m *model) steps() []modelStep {
	all := []modelStep{
		{"target Pod", m.targetPodRuns}, {"target node", m.targetNodeActs}, {"begin", m.sourceNodeBegins},
		{"switch", m.hypervisorsSwitch}, {"source node", m.sourceNodeEnds}, {"target node", m.targetNodeActs},
	}
	if !m.cut {
		all = append(all, modelStep{"push", m.push}, modelStep{"pull", m.pull}, modelStep{"cancel", m.cancel})
	}
	return all
}

func (m *model) step() {
	steps := append(m.steps(), modelStep{"sender", func() { m.pass(m.from) }}, modelStep{"receiver", func() { m.pass(m.to) }})
	switch n := m.random.IntN(400); {
	case n == 0:
		m.do(modelStep{"delete sender", func() { m.deleted(m.from) }})
	case n == 1:
		m.do(modelStep{"delete receiver", func() { m.deleted(m.to) }})
	case n == 2:
		m.do(modelStep{"cut", func() { m.cut = true }})
	case n == 3 && m.at == atSource:
		m.do(modelStep{"target Pod dies", func() { delete(m.to.Pods, "dst") }})
	case n < 8:
		m.do(modelStep{"minutes", func() { m.advance(time.Duration(m.random.IntN(6)) * time.Minute) }})
	default:
		m.do(steps[m.random.IntN(len(steps))])
	}
}

func (m *model) do(n modelStep) {
	m.log = append(m.log, n.name)
	n.do()
}

func (m *model) deleted(w *world) {
	if w.Migration.DeletionTimestamp == nil && len(w.Migration.Finalizers) > 0 {
		w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	}
}

// advance moves both clocks. What a node sees it says within less than that.
func (m *model) advance(by time.Duration) {
	m.targetNodeActs()
	m.late = m.late || m.at == atTarget && !m.from.Migration.IsFinal()
	m.from.Now, m.to.Now = m.from.Now.Add(by), m.to.Now.Add(by)
}

func (m *model) controllers() { m.pass(m.from); m.pass(m.to) }

// pass is one of a controller, and checks what every plan must have.
func (m *model) pass(w *world) {
	if w.Released && w.Migration.IsFinal() {
		return
	}
	had := w.Pods["dst"] != nil
	plan := w.Pass()
	if had && w.Pods["dst"] == nil && m.at == atTarget && w == m.to {
		m.fail("the Pod in which the VMI runs was deleted")
	}
	bounded := !plan.Deadline.IsZero() || plan.Status.Phase == v1.MigrationRunning ||
		plan.Reason == "Aborting" || plan.Reason == "Cancelling" || plan.Reason == "Completing"
	if !w.Migration.IsFinal() && !bounded {
		m.fail("phase %s has no deadline: %+v", w.Migration.Status.Phase, plan)
	}
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s\nguest at %s, sender %s %q %+v\nreceiver %s %q %+v\nlease %+v\nafter %v", m.seed, fmt.Sprintf(format, args...), m.at,
		m.from.Migration.Status.Phase, m.from.Reason(), stateIn(m.from), m.to.Migration.Status.Phase, m.to.Reason(), stateIn(m.to), m.from.Lease(), m.log)
}

// check holds after every step.
func (m *model) check() {
	m.t.Helper()
	if m.at == atTarget {
		if m.to.Migration.Status.Phase == v1.MigrationFailed {
			m.fail("the receiver has failed with the VMI")
		}
		return
	}
	switch {
	case m.from.VMI.IsFinal():
		m.fail("the VMI at the sender has ended before the receiver has the VMI")
	case m.from.Migration.Status.Phase == v1.MigrationSucceeded, m.to.Migration.Status.Phase == v1.MigrationSucceeded:
		m.fail("a migration succeeded without migrating the VMI")
	case !m.stock && !m.from.Lease().MayRun(sourceNode):
		m.fail("the guest's node may not run it")
	}
}

// final holds when everybody has done what there is to do.
func (m *model) final() {
	m.t.Helper()
	m.check()
	l := m.from.Lease()
	switch {
	case m.at == atTarget && m.to.Migration.Status.Phase != v1.MigrationSucceeded:
		m.fail("the guest has arrived and the receiver does not say so")
	case m.at == atTarget && !m.from.Migration.IsFinal():
		m.fail("the guest has arrived and the sender has not ended")
	case m.at == atTarget && !m.late && m.from.Migration.Status.Phase != v1.MigrationSucceeded:
		m.fail("the guest has arrived and the sender does not say so")
	case m.at == atSource && !m.cut && (m.from.Migration.Status.Phase != v1.MigrationFailed || m.to.Migration.Status.Phase != v1.MigrationFailed):
		m.fail("the guest stays and both have not ended")
	case m.at == atSource && stateIn(m.to) != nil && stateIn(m.to).StartTimestamp == nil && !migration.Sighted(stateIn(m.to)) && m.to.Migration.Status.Phase != v1.MigrationFailed:
		m.fail("nothing of the VMI has arrived and the receiver has not ended")
	case m.at == atSource && m.from.Migration.Status.Phase != v1.MigrationFailed:
		m.fail("the guest stays and the sender has not ended")
	case m.at == atSource && !m.stock && (l.State != handoff.Owned || l.Holder != sourceNode):
		m.fail("the guest stays and its node does not own it")
	case m.at == atSource && len(m.from.VMI.Status.MigratedVolumes) > 0:
		m.fail("its claims are still listed as moving")
	case m.at == atSource && m.to.Migration.Status.Phase == v1.MigrationFailed && m.to.Pods["dst"] != nil:
		m.fail("the target Pod is left behind")
	}
}
