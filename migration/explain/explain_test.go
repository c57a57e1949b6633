// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/internal/migrationworld"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

var rewrite = flag.Bool("update", false, "rewrite the golden files")

// world is an API in memory with one VMI and one migration.
type world struct {
	*migrationworld.World
	t *testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{migrationworld.NewWorld(t), t}
}

// explained is the explanation of the world's migration, as a controller returns it.
func (w *world) explained() Explanation {
	s := w.Snapshot()
	s.Slot = w.Admission.Explain(types.NamespacedName{Namespace: "ns", Name: w.Migration.Name}, w.Now)
	return Explain(s, w.Now)
}

// resolution is of two policies, of which one matches.
func (w *world) resolution() policy.Resolution {
	bandwidth := resource.MustParse("64Mi")
	match := policy.NewPolicies([]v1alpha1.MigrationPolicy{
		{ObjectMeta: metav1.ObjectMeta{Name: "everybody"}, Spec: v1alpha1.MigrationPolicySpec{
			Selectors: &v1alpha1.Selectors{}, AllowPostCopy: new(true), BandwidthPerMigration: &bandwidth,
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: "databases"}, Spec: v1alpha1.MigrationPolicySpec{
			Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: map[string]string{"tier": "db"}},
		}},
	}).Match(map[string]string{"tier": "web"}, nil)
	r, err := policy.Resolve(match, &v1.MigrationConfiguration{CompletionTimeoutPerGiB: new(int64(60))})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// crowd takes slots for migrations of other VMIs.
func (w *world) crowd(names ...string) {
	for _, name := range names {
		w.Admission.Ask(queue.Claim{
			Key: types.NamespacedName{Namespace: "other", Name: name}, Since: migrationworld.Start, SourceNode: migrationworld.SourceNode, TargetNode: migrationworld.TargetNode,
			Acting: true, Arriving: true,
		}, w.Now)
	}
}

// finished is another migration of the VMI that ended.
func finished(name string, r migration.Reason, at time.Duration) *v1.VirtualMachineInstanceMigration {
	m := migrationworld.NewMigration(name, types.UID(name))
	m.CreationTimestamp = metav1.NewTime(migrationworld.Start.Add(at - time.Minute))
	m.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: migrationworld.SourceNode}
	m.Status.Phase = v1.MigrationSucceeded
	m.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourceNode: "elsewhere", TargetNode: migrationworld.SourceNode}
	if r != "" {
		m.Status.Phase = v1.MigrationFailed
		m.Status.Conditions = append(m.Status.Conditions, v1.VirtualMachineInstanceMigrationCondition{
			Type: migration.ConditionFailed, Status: corev1.ConditionTrue, Reason: string(r), Message: "it went wrong",
		})
	}
	m.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
		{Phase: m.Status.Phase, PhaseTransitionTimestamp: metav1.NewTime(migrationworld.Start.Add(at))},
	}
	return m
}

// explainCases are standings of a migration.
var explainCases = map[string]func(*world){
	"new": func(*world) {},
	"queued": func(w *world) {
		w.crowd("a", "b")
		w.Passes()
		w.Now = w.Now.Add(5 * time.Minute)
	},
	"guest-not-running": func(w *world) {
		w.VMI.Status.Phase = v1.Scheduled
		w.VMI.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "u"}}
		w.Passes()
	},
	"another-migration-first": func(w *world) {
		o := migrationworld.NewMigration("a-first", "other")
		w.Others = append(w.Others, o)
		w.Passes()
	},
	"unschedulable": func(w *world) {
		w.Passes()
		w.MarkUnschedulable("0/3 nodes are available")
		w.Now = w.Now.Add(time.Minute)
		w.Passes()
	},
	"target-node-is-full": func(w *world) {
		w.Config.Limits = queue.Limits{Cluster: 9, Outbound: 9, Inbound: 2}
		w.Restart()
		w.Passes()
		w.crowd("a", "b")
		w.PodBecomesReady(migrationworld.TargetNode)
		w.Passes()
	},
	"moving": func(w *world) {
		w.Until(v1.MigrationRunning)
		w.Now = w.Now.Add(90 * time.Second)
	},
	"failed-before": func(w *world) {
		w.Others = append(w.Others, finished("evacuation-1", migration.ReasonUnschedulable, -2*time.Hour), finished("evacuation-2", "", -time.Hour))
		w.Passes()
	},
	"failed": func(w *world) {
		w.Until(v1.MigrationRunning)
		w.SourceReverts("the connection was lost")
		w.Passes()
	},
	"succeeded": func(w *world) { w.Until(v1.MigrationSucceeded) },
}

// explainTargets are what is known of the nodes in some of the cases.
var explainTargets = map[string]placement.Fitness{
	"queued": {Nodes: 3, Candidates: []string{"other", migrationworld.TargetNode}, Excluded: []placement.Exclusion{{Rule: placement.RuleSource, Nodes: []string{migrationworld.SourceNode}}}},
	"new": {Nodes: 2, Excluded: []placement.Exclusion{
		{Rule: placement.RuleSource, Nodes: []string{migrationworld.SourceNode}}, {Rule: placement.RuleNodeSelector, What: []string{"kubernetes.io/hostname=source"}, Nodes: []string{migrationworld.TargetNode}},
	}},
}

// eachStanding looks at the migration in every one of the cases.
func eachStanding(t *testing.T, look func(t *testing.T, name string, w *world)) {
	t.Helper()
	for name, arrange := range explainCases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.InForce = w.resolution()
			arrange(w)
			look(t, name, w)
		})
	}
}

func TestExplain_Text(t *testing.T) {
	eachStanding(t, func(t *testing.T, name string, w *world) {
		e := w.explained()
		if fit, found := explainTargets[name]; found {
			e.Aim(fit)
		}
		got := e.String()
		path := filepath.Join("testdata", name+".txt")
		if *rewrite {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("explanation (-want +got), -update rewrites it:\n%s", diff)
		}
	})
}

// Explanations match decisions, at every standing.
func TestExplain_AgreesWithDecide(t *testing.T) {
	eachStanding(t, func(t *testing.T, _ string, w *world) {
		s := w.Snapshot()
		s.Slot = w.Admission.Explain(types.NamespacedName{Namespace: "ns", Name: "m"}, w.Now)
		before := w.VMI.DeepCopy()
		e, plan := Explain(s, w.Now), migration.Decide(s, w.Now)
		if e.Phase != plan.Status.Phase || e.Responsible != plan.Responsible && plan.Responsible != "" {
			t.Errorf("explained %s, %s; decided %s, %s", e.Phase, e.Responsible, plan.Status.Phase, plan.Responsible)
		}
		if final := plan.Status.Phase == v1.MigrationSucceeded || plan.Status.Phase == v1.MigrationFailed; !final && (e.Reason != plan.Reason || e.Message != plan.Message) {
			t.Errorf("explained %s: %s; decided %s: %s", e.Reason, e.Message, plan.Reason, plan.Message)
		}
		if len(e.Next) != len(plan.Actions) {
			t.Errorf("explained %v, decided %v", e.Next, plan.Actions)
		}
		if diff := cmp.Diff(before, w.VMI); diff != "" {
			t.Errorf("the VMI was changed:\n%s", diff)
		}
	})
}

// Every wait names the event that ends it.
func TestExplain_Unblock(t *testing.T) {
	eachStanding(t, func(t *testing.T, _ string, w *world) {
		e := w.explained()
		waits := e.Responsible != handoff.ByNobody && len(e.Next) == 0
		if waits != (e.Unblock != "") {
			t.Errorf("owner %s, reason %s, writes %v: goes on when %q", e.Responsible, e.Reason, e.Next, e.Unblock)
		}
	})
}

func TestExplain_EscapesControlCharacters(t *testing.T) {
	odd := "a\nb\x1b[2Jc\u202e"
	text := Explanation{
		VMI: odd, Message: odd, Checks: []CheckResult{{Blocked: true, Message: odd}}, Policy: &PolicyStanding{Why: odd},
		Options: []Option{{Name: "network", Value: odd}}, Attempts: []Attempt{{Name: "n", Message: odd}},
	}.String()
	if strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, "\nb") || strings.Count(text, "a b�[2Jc�") != 6 {
		t.Errorf("%q", text)
	}
}

func TestExplain_NegativeOptions(t *testing.T) {
	got := differing(&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: new(int64(-1))})
	if !slices.Contains(got, Option{Name: "completionTimeoutPerGiB", Value: "-1", Default: "150"}) {
		t.Errorf("%+v", got)
	}
}

func TestExplain_JSON(t *testing.T) {
	w := newWorld(t)
	w.InForce = w.resolution()
	explainCases["queued"](w)
	text, err := json.Marshal(w.explained())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"reason":"WaitingForSlot"`, `"limit":"parallelOutboundMigrationsPerNode"`, `"node":"source"`, `"used":2,"max":2`,
		`"holders":["other/a","other/b"]`, `"queue":{"position":1,"waiting":1}`, `"name":"bandwidthPerMigration","value":"64Mi","default":"0"`,
		`"losers":[{"name":"databases","why":"the VMI has no label tier=db"}]`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

func BenchmarkExplain(b *testing.B) {
	for _, name := range []string{"queued", "moving", "failed-before"} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(&testing.T{})
			w.InForce = w.resolution()
			explainCases[name](w)
			s := w.Snapshot()
			s.Slot = w.Admission.Explain(types.NamespacedName{Namespace: "ns", Name: "m"}, w.Now)
			b.ReportAllocs()
			for b.Loop() {
				_ = Explain(s, w.Now)
			}
		})
	}
}
