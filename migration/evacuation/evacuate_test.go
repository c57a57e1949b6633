// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/migration"
)

// evacuationCase is a VMI of a node that is drained, unless it says otherwise.
type evacuationCase struct {
	guest     []func(*Candidate)
	undrained bool // the node has no drain taint
	cluster   *v1.EvictionStrategy
	config    func(*migration.Config)
	verb      Verb
	reason    migration.Reason
	says      string
	// priority is that of the migration to create; cancels are those to delete; at is when to look again.
	priority v1.MigrationPriority
	cancels  []string
	at       time.Duration
}

var (
	ifPossible = v1.EvictionStrategyLiveMigrateIfPossible
	migrate    = v1.EvictionStrategyLiveMigrate
)

var evacuationCases = map[string]evacuationCase{
	"S14/107 a guest of a node with the drain taint": {verb: Create, reason: reasonEvacuating, says: "node source is being drained", priority: v1.PrioritySystemCritical},
	"S14/109 not migratable":                         {guest: []func(*Candidate){notMigratable}, reason: migration.ReasonNotMigratable, says: "Some: some reason"},
	"S14/109 LiveMigratable is missing": {
		guest: []func(*Candidate){silent(v1.VirtualMachineInstanceIsMigratable)}, reason: migration.ReasonNotMigratable, says: "has not reported yet",
	},
	"S14/110 two active Pods": {guest: []func(*Candidate){hasPod("other", corev1.PodPending)}, reason: ReasonActivePods, says: "other, pod"},
	"a Pod that cannot end where its node is lost": {
		guest: []func(*Candidate){hasPod("left", corev1.PodRunning, going("lost"))}, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"a Pod that is ending beside the guest": {
		guest: []func(*Candidate){hasPod("other", corev1.PodRunning, going(sourceNode))}, reason: ReasonActivePods, says: "other, pod",
	},
	"S14/110 one running Pod beside others": {
		guest: []func(*Candidate){
			hasPod("done", corev1.PodSucceeded), hasPod("failed", corev1.PodFailed),
			hasPod("foreign", corev1.PodRunning, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }),
			hasPod("volumes", corev1.PodRunning, func(p *corev1.Pod) { p.Labels[v1.AppLabel] = launcherpod.AttachmentApp }),
		},
		verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"S14/112 asked to leave another node": {guest: []func(*Candidate){marked("elsewhere")}, undrained: true, reason: reasonNotAsked},
	"asked to leave this node": {
		guest: []func(*Candidate){marked(sourceNode)}, undrained: true, verb: Create, reason: reasonEvacuating, says: "requested to leave node source",
		priority: v1.PrioritySystemCritical,
	},
	"asked by a descheduler": {
		guest: []func(*Candidate){marked(sourceNode), byDescheduler}, undrained: true, verb: Create, reason: reasonEvacuating,
		priority: v1.PrioritySystemMaintenance,
	},
	"asked by a descheduler on a node that is drained": {
		guest: []func(*Candidate){marked(sourceNode), byDescheduler}, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"asked to leave while it moves":     {guest: []func(*Candidate){marked(sourceNode), state("m", hasStarted)}, undrained: true, reason: migration.ReasonMoving},
	"final":                             {guest: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed })}, reason: migration.ReasonGuestFinal},
	"deleted":                           {guest: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) { vmi.DeletionTimestamp = &metav1.Time{Time: start} })}, reason: migration.ReasonGuestDeleted},
	"no strategy":                       {guest: []func(*Candidate){noStrategy}, reason: ReasonStrategyNone},
	"strategy None against the cluster": {guest: []func(*Candidate){strategy(v1.EvictionStrategyNone)}, cluster: &migrate, reason: ReasonStrategyNone},
	"the cluster's strategy":            {guest: []func(*Candidate){noStrategy}, cluster: &migrate, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical},
	"strategy External":                 {guest: []func(*Candidate){strategy(v1.EvictionStrategyExternal)}, reason: reasonStrategyExternal},
	"if possible, and it is":            {guest: []func(*Candidate){strategy(ifPossible)}, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical},
	"if possible, and it is not":        {guest: []func(*Candidate){strategy(ifPossible), notMigratable}, reason: migration.ReasonNotMigratable},
	"a user's migration waits": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0)}, reason: reasonMigrationExists, says: `migration "m"`,
	},
	"its evacuation is under way": {guest: []func(*Candidate){has("m", v1.MigrationRunning, 0, evacuates(sourceNode))}, reason: reasonMigrationExists},
	"its evacuation was for balance": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, evacuates(sourceNode), forBalance)}, verb: Cancel, reason: reasonEvacuating, cancels: []string{"m"},
		says: "lower priority than system-critical",
	},
	"its evacuation is for balance": {
		guest: []func(*Candidate){marked(sourceNode), byDescheduler, has("m", v1.MigrationPending, 0, evacuates(sourceNode), forBalance)}, undrained: true, reason: reasonMigrationExists,
	},
	"its evacuation was for balance, and waits for a slot at the target": {
		guest: []func(*Candidate){has("m", v1.MigrationScheduled, 0, evacuates(sourceNode), forBalance), state("before", hasCompleted)},
		verb:  Cancel, reason: reasonEvacuating, cancels: []string{"m"},
	},
	"its evacuation was for balance, and is with the nodes": {
		guest:  []func(*Candidate){has("m", v1.MigrationTargetReady, 0, evacuates(sourceNode), forBalance), state("m", func(*v1.VirtualMachineInstanceMigrationState) {})},
		reason: reasonMigrationExists,
	},
	"its evacuation was for balance, and is being called off": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, evacuates(sourceNode), forBalance, deleted)}, reason: reasonMigrationExists,
	},
	"a user's migration of a lower priority waits": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, forBalance)}, reason: reasonMigrationExists,
	},
	"an evacuation of a lower priority of what cannot be migrated": {
		guest: []func(*Candidate){notMigratable, has("m", v1.MigrationPending, 0, evacuates(sourceNode), forBalance)}, reason: reasonMigrationExists,
	},
	"own writes are not seen": {
		guest: []func(*Candidate){func(g *Candidate) { g.Pending = "creation of m" }}, reason: reasonCacheBehind, says: "creation of m",
	},

	// 12.14: the intent follows the node.
	"12.14 the taint is gone, not begun": {
		guest: []func(*Candidate){has("m", v1.MigrationScheduling, 0, evacuates(sourceNode))}, undrained: true,
		verb: Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"12.14 the taint is gone, handed over but not begun": {
		guest:     []func(*Candidate){has("m", v1.MigrationTargetReady, 0, evacuates(sourceNode)), state("m", func(*v1.VirtualMachineInstanceMigrationState) {})},
		undrained: true, verb: Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"12.14 the taint is gone, begun": {
		guest: []func(*Candidate){has("m", v1.MigrationTargetReady, 0, evacuates(sourceNode)), state("m", hasStarted)}, undrained: true, reason: reasonNotAsked,
	},
	"12.14 the taint is gone, running": {
		guest: []func(*Candidate){has("m", v1.MigrationRunning, 0, evacuates(sourceNode))}, undrained: true, reason: reasonNotAsked,
	},
	"12.14 the taint is gone, called off before": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, evacuates(sourceNode), deleted)}, undrained: true, reason: reasonNotAsked,
	},
	"12.14 the taint is gone, others' migrations stay": {
		guest:     []func(*Candidate){has("a", v1.MigrationPending, 0), has("b", v1.MigrationPending, 0, evacuates("elsewhere")), has("c", v1.MigrationFailed, 0, evacuates(sourceNode))},
		undrained: true, reason: reasonNotAsked,
	},
	"12.14 the mark is cleared, and there is another": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, evacuates(sourceNode)), marked("elsewhere")}, undrained: true,
		verb: Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"12.14 the guest is elsewhere by now": {
		guest: []func(*Candidate){runsOn(targetNode), has("m", v1.MigrationPending, 0, evacuates(sourceNode))},
		verb:  Cancel, reason: reasonNotAsked, cancels: []string{"m"}, says: "not on node source",
	},
	"12.14 the strategy says no by now": {
		guest: []func(*Candidate){strategy(v1.EvictionStrategyNone), has("m", v1.MigrationPending, 0, evacuates(sourceNode))},
		verb:  Cancel, reason: ReasonStrategyNone, cancels: []string{"m"},
	},

	// 12.27: no second migration of a VMI that has left.
	"12.27 the guest's object is of before its move": {
		guest:  []func(*Candidate){has("m", v1.MigrationSucceeded, time.Second, evacuates(sourceNode), moved(sourceNode, targetNode))},
		reason: reasonCacheBehind, at: behindFor - time.Second,
	},
	"12.27 the guest's object is of while it moved": {
		guest:  []func(*Candidate){has("m", v1.MigrationSucceeded, time.Second, evacuates(sourceNode), moved(sourceNode, targetNode)), state("m", func(*v1.VirtualMachineInstanceMigrationState) {})},
		reason: reasonCacheBehind, at: behindFor - time.Second,
	},
	"12.27 the guest came back": {
		guest: []func(*Candidate){
			has("m", v1.MigrationSucceeded, 3*time.Second, evacuates(sourceNode), moved(sourceNode, targetNode)),
			has("n", v1.MigrationSucceeded, time.Second, moved(targetNode, sourceNode)), state("n", hasCompleted),
		},
		verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"12.27 the guest's migration state is cleared for good": {
		guest: []func(*Candidate){has("m", v1.MigrationSucceeded, behindFor, moved(sourceNode, targetNode))},
		verb:  Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},

	// The cooldown holds for balancing, not for draining.
	"cooldown: descheduled again": {
		guest:     []func(*Candidate){marked(sourceNode), byDescheduler, has("m", v1.MigrationSucceeded, time.Minute, evacuates("other"), moved("other", sourceNode))},
		undrained: true, reason: ReasonCooldown, says: "2026-01-01T12:04:00Z", at: 4 * time.Minute,
	},
	"cooldown: over": {
		guest:     []func(*Candidate){marked(sourceNode), byDescheduler, has("m", v1.MigrationSucceeded, 5*time.Minute, evacuates("other"), moved("other", sourceNode))},
		undrained: true, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemMaintenance,
	},
	"cooldown: turned off": {
		guest:     []func(*Candidate){marked(sourceNode), byDescheduler, has("m", v1.MigrationSucceeded, time.Second, evacuates("other"), moved("other", sourceNode))},
		undrained: true, config: func(c *migration.Config) { c.Cooldown = -1 }, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemMaintenance,
	},
	"cooldown: not by a user's migration": {
		guest:     []func(*Candidate){marked(sourceNode), byDescheduler, has("m", v1.MigrationSucceeded, time.Second, moved("other", sourceNode))},
		undrained: true, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemMaintenance,
	},
	"cooldown: not by one that failed": {
		guest:     []func(*Candidate){marked(sourceNode), byDescheduler, has("m", v1.MigrationFailed, time.Second, evacuates(sourceNode))},
		undrained: true, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemMaintenance,
	},
	"cooldown: a drain does not wait": {
		guest: []func(*Candidate){byDescheduler, has("m", v1.MigrationSucceeded, time.Second, evacuates("other"), moved("other", sourceNode))},
		verb:  Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"cooldown: nor does a person": {
		guest:     []func(*Candidate){marked(sourceNode), has("m", v1.MigrationSucceeded, time.Second, evacuates("other"), moved("other", sourceNode))},
		undrained: true, verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},

	// 12.20: what cannot work is not repeated.
	"12.20 failed for good, and nothing has changed": {
		guest:  []func(*Candidate){has("m", v1.MigrationFailed, time.Minute, evacuates(sourceNode), failedFor(migration.ReasonUnsupported, sameCircumstances))},
		reason: ReasonUnchanged, says: "NotSupportedYet: as it is", at: staticRetry - time.Minute,
	},
	"12.20 failed for good, something has changed": {
		guest: []func(*Candidate){has("m", v1.MigrationFailed, time.Minute, evacuates(sourceNode), failedFor(migration.ReasonUnsupported, "before"))},
		verb:  Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"12.20 failed for good, long ago": {
		guest: []func(*Candidate){has("m", v1.MigrationFailed, staticRetry, evacuates(sourceNode), failedFor(migration.ReasonUnsupported, sameCircumstances))},
		verb:  Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"12.20 failed by chance": {
		guest: []func(*Candidate){has("m", v1.MigrationFailed, time.Minute, evacuates(sourceNode), failedFor(migration.ReasonNodeReported, sameCircumstances))},
		verb:  Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"12.20 a user's failed": {
		guest: []func(*Candidate){has("m", v1.MigrationFailed, time.Minute, failedFor(migration.ReasonUnsupported, sameCircumstances))},
		verb:  Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
	"12.20 it worked since": {
		guest: []func(*Candidate){
			has("m", v1.MigrationFailed, time.Hour/2, evacuates(sourceNode), failedFor(migration.ReasonUnsupported, sameCircumstances)),
			has("n", v1.MigrationSucceeded, 20*time.Minute, evacuates(sourceNode), moved("other", sourceNode)),
		},
		verb: Create, reason: reasonEvacuating, priority: v1.PrioritySystemCritical,
	},
}

// sameCircumstances are those of a VMI that nothing was changed of.
var sameCircumstances = circumstances(guestWith().VMI, "fleet")

func TestEvacuate(t *testing.T) {
	for name, tc := range evacuationCases {
		t.Run(name, func(t *testing.T) {
			c := migration.Config{}.WithDefaults()
			if tc.config != nil {
				tc.config(&c)
			}
			all := Evacuate(Evacuation{
				Node: sourceNode, Draining: !tc.undrained, VMIs: []Candidate{guestWith(tc.guest...)}, Strategy: tc.cluster, Fleet: "fleet", Config: c,
			}, start)
			if len(all) != 1 {
				t.Fatalf("%d standings", len(all))
			}
			checkStanding(t, all[0], tc)
		})
	}
}

func checkStanding(t *testing.T, s Standing, want evacuationCase) {
	t.Helper()
	var cancels []string
	for _, m := range s.Cancel {
		cancels = append(cancels, m.Name)
	}
	if s.Verb != want.verb || s.Reason != want.reason || !strings.Contains(s.Message, want.says) || !slices.Equal(cancels, want.cancels) {
		t.Errorf("verb %q, reason %s, message %q, cancels %v", s.Verb, s.Reason, s.Message, cancels)
	}
	var at time.Time
	if want.at != 0 {
		at = start.Add(want.at)
	}
	if !s.At.Equal(at) || !Soonest([]Standing{{}, s}).Equal(at) {
		t.Errorf("looks again at %v, want %v", s.At, at)
	}
	// 13.28: no standing requests another pass at once.
	if !s.At.IsZero() && !s.At.After(start) {
		t.Errorf("looks again at once")
	}
	if s.Verb != Create {
		return
	}
	m := s.Migration
	if m.Spec.VMIName != "guest" || m.Namespace != "ns" || *m.Spec.Priority != want.priority || !migration.Automatic(m) ||
		m.Annotations[v1.EvacuationMigrationAnnotation] != sourceNode || m.Annotations[circumstancesAnnotation] == "" {
		t.Errorf("creates %+v with priority %v", m, *m.Spec.Priority)
	}
}

func TestEvacuate_OncePerVMI(t *testing.T) {
	e := Evacuation{Node: sourceNode, Draining: true, Fleet: "fleet", Config: migration.Config{}.WithDefaults()}
	// S14/107: that others run is no reason to create none.
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		g := guestWith(has(name, v1.MigrationRunning, 0, evacuates(sourceNode)))
		e.VMIs = append(e.VMIs, g)
	}
	e.VMIs = append(e.VMIs, guestWith())
	var made []string
	for range 2 {
		all := Evacuate(e, start)
		for i, s := range all {
			if (s.Verb == Create) != (i == len(all)-1) {
				t.Fatalf("VMI %d: %+v", i, s)
			}
		}
		made = append(made, all[len(all)-1].Migration.Name)
	}
	if made[0] != made[1] {
		t.Errorf("a controller that has not observed %s creates %s", made[0], made[1])
	}
}

func TestDraining(t *testing.T) {
	other := "example.test/empty"
	taint := func(key string, effect corev1.TaintEffect) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: key, Effect: effect}}}}
	}
	for name, tc := range map[string]struct {
		node    *corev1.Node
		cluster *v1.MigrationConfiguration
		want    bool
	}{
		"no node":                  {},
		"the taint":                {node: taint(DefaultDrainTaint, corev1.TaintEffectNoSchedule), want: true},
		"another effect":           {node: taint(DefaultDrainTaint, corev1.TaintEffectPreferNoSchedule)},
		"nothing of it configured": {node: taint(DefaultDrainTaint, corev1.TaintEffectNoSchedule), cluster: &v1.MigrationConfiguration{}, want: true},
		"another key":              {node: taint(DefaultDrainTaint, corev1.TaintEffectNoSchedule), cluster: &v1.MigrationConfiguration{NodeDrainTaintKey: &other}},
		"the configured key":       {node: taint(other, corev1.TaintEffectNoSchedule), cluster: &v1.MigrationConfiguration{NodeDrainTaintKey: &other}, want: true},
	} {
		if got := Draining(tc.node, tc.cluster); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
