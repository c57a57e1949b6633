// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/internal/migrationfixture"
	"github.com/virtloom/virtloom/migration/placement"
)

// refuse is a pass in which the target Pod could not be made.
func (w *world) refuse(err error) migration.Plan {
	s := w.Snapshot()
	s.Failures = map[migration.Verb]error{migration.CreateTarget: err}
	plan := migration.Decide(s, w.Now)
	w.Migration.Status = *plan.Status.DeepCopy()
	return plan
}

func TestS14_73NoNodeMatches(t *testing.T) {
	const hostModel = v1.SupportedHostModelMigrationCPU + "Skylake"
	for name, tc := range map[string]struct {
		label  string
		events []string
	}{
		"host-model": {hostModel, []string{"NoSuitableNodesForHostModelMigration", "FailedMigration", "FailedMigration"}},
		"label":      {"rack", []string{"FailedMigration", "FailedMigration"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Pass()
			pod := migrationfixture.Target()
			pod.Spec.NodeSelector[tc.label] = "true"
			err := &migration.NoNodeError{Fitness: placement.Fit(pod, "source", []*corev1.Node{migrationfixture.Node("source"), migrationfixture.Node("b")})}
			plan := w.refuse(err)
			if plan.Status.Phase != v1.MigrationFailed || w.Reason() != migration.ReasonNoNode {
				t.Fatalf("phase %q, reason %q", plan.Status.Phase, w.Reason())
			}
			var events []string
			for _, e := range plan.Events {
				events = append(events, e.Reason)
			}
			if d := cmp.Diff(tc.events, events); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
			text := migration.Condition(plan.Status, migration.ConditionFailed).Message
			if !strings.Contains(text, "0 of 2 nodes: 1 is the source, 1 lacks label "+tc.label+"=true") || len(err.Fitness.Remedies()) != 1 || !strings.Contains(text, err.Fitness.Remedies()[0]) {
				t.Errorf("message is %q", text)
			}
		})
	}
}

func TestAwaitNodes_FromBeginOfWait(t *testing.T) {
	w := newWorld(t)
	w.Config.AwaitNodes = time.Minute
	w.Pass()
	w.Now = start.Add(10 * time.Minute) // in the queue until now
	err := &migration.NoNodeError{Fitness: placement.Fit(migrationfixture.Target(), "source", []*corev1.Node{migrationfixture.Node("source")})}
	plan := w.refuse(err)
	until := w.Now.Add(time.Minute)
	if plan.Reason != migration.ReasonNoNode || plan.Status.Phase != v1.MigrationPending || !plan.RequeueAt.Equal(until) {
		t.Fatalf("phase %q, reason %q, wake %s", plan.Status.Phase, plan.Reason, plan.RequeueAt)
	}
	s := w.Snapshot()
	s.Failures = map[migration.Verb]error{migration.CreateTarget: err}
	if _, wanted := s.Claim(w.Now); wanted {
		t.Error("a slot is kept while nodes are awaited")
	}
	// Something else blocks for a while: that does not restart the wait.
	w.Now = w.Now.Add(30 * time.Second)
	w.VMI.Status.Phase = v1.Scheduled
	w.refuse(nil)
	w.VMI.Status.Phase = v1.Running
	if plan = w.refuse(err); !plan.RequeueAt.Equal(until) {
		t.Errorf("wake is %s, want %s", plan.RequeueAt, until)
	}
	w.Now = until
	if plan = w.refuse(err); plan.Status.Phase != v1.MigrationFailed || migration.Condition(plan.Status, migration.ConditionNoNode) != nil {
		t.Errorf("phase %q, conditions %+v", plan.Status.Phase, plan.Status.Conditions)
	}
}

func TestS14_68Quota(t *testing.T) {
	w := newWorld(t)
	w.Pass()
	first := &placement.QuotaError{Shortages: []placement.Shortage{{
		Quota: "team", Resource: corev1.ResourceRequestsMemory,
		Needed: resource.MustParse("2Gi"), Used: resource.MustParse("7Gi"), Limit: resource.MustParse("8Gi"),
	}}}
	w.refuse(first)
	const numbers = "the target Pod exceeds the quota: requests.memory: needs 2Gi, 7Gi of 8Gi are used in ResourceQuota team"
	rejected := func() string {
		if c := migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota); c != nil {
			return c.Message
		}
		return ""
	}
	if rejected() != numbers || w.Reason() != migration.ReasonQuota || w.Migration.Status.Phase != v1.MigrationPending {
		t.Fatalf("phase %q, conditions %+v", w.Migration.Status.Phase, w.Migration.Status.Conditions)
	}
	before := w.Migration.Status.DeepCopy()
	second := &placement.QuotaError{Shortages: slices.Clone(first.Shortages)}
	second.Shortages[0].Used = resource.MustParse("6500Mi")
	w.Now = start.Add(time.Minute)
	if plan := w.refuse(second); !cmp.Equal(*before, plan.Status) || len(plan.Events) > 0 {
		t.Errorf("the status depends on other workloads:\n%s", cmp.Diff(*before, plan.Status))
	}
	w.Passes()
	if w.Migration.Status.Phase != v1.MigrationScheduling || rejected() != "" {
		t.Errorf("phase %q, condition %q", w.Migration.Status.Phase, rejected())
	}
}

// TestRejectedClaim_ReleasesSlot is of the claim that the target Pod needs.
func TestRejectedClaim_ReleasesSlot(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want migration.Reason
	}{
		"for lack of quota":     {fmt.Errorf("%w: exceeded quota: team", placement.ErrQuota), migration.ReasonQuota},
		"for whatever there is": {errors.New("no such class"), migration.ReasonCreateFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keepState(corev1.ReadWriteOnce)
			w.Pass()
			s := w.Snapshot()
			if _, wanted := s.Claim(w.Now); !wanted {
				t.Fatal("no slot is asked for")
			}
			s.Failures = map[migration.Verb]error{migration.CreateClaim: tc.err}
			if _, wanted := s.Claim(w.Now); wanted {
				t.Error("the slot is kept")
			}
			plan := migration.Decide(s, w.Now)
			rejected := migration.Condition(plan.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) != nil
			if plan.Reason != tc.want || rejected != (tc.want == migration.ReasonQuota) || len(plan.Actions) > 0 {
				t.Errorf("reason %q, %q, actions %+v", plan.Reason, plan.Message, plan.Actions)
			}
		})
	}
}

// TestVaryingError_ReportedOnce has actions fail again, each time in other words.
func TestVaryingError_ReportedOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		kind  migration.Verb
		phase v1.VirtualMachineInstanceMigrationPhase
	}{
		"target Pod":     {migration.CreateTarget, v1.MigrationPending},
		"claim":          {migration.CreateClaim, v1.MigrationPending},
		"attachment Pod": {migration.CreateAttachment, v1.MigrationScheduling},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(tc.phase)
			if tc.phase == v1.MigrationScheduling {
				w.plug("disk", v1.VolumeReady)
				w.PodBecomesReady(targetNode)
			}
			fail := func(text string) migration.Plan {
				s := w.Snapshot()
				s.Failures = map[migration.Verb]error{tc.kind: errors.New(text)}
				plan := migration.Decide(s, w.Now)
				w.Migration.Status = *plan.Status.DeepCopy()
				return plan
			}
			first := fail("read tcp 10.0.0.1:40312->10.0.0.2:6443: connection reset")
			if waiting := migration.Condition(first.Status, migration.ConditionWaiting); waiting.Reason != string(migration.ReasonCreateFailed) || !strings.Contains(waiting.Message, "connection reset") {
				t.Fatalf("condition is %+v", waiting)
			}
			for _, text := range []string{"read tcp 10.0.0.1:40313->10.0.0.2:6443: connection reset", "used 7, limit 8"} {
				w.Now = w.Now.Add(time.Second)
				if plan := fail(text); !cmp.Equal(first.Status, plan.Status) {
					t.Errorf("the status follows the words (-first +then):\n%s", cmp.Diff(first.Status, plan.Status))
				}
			}
		})
	}
}

func TestCheckQuota(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	pod := migrationfixture.Target()
	pod.Spec.Containers[0].Resources.Limits = list("cpu", "3", "memory", "5Gi", "devices.kubevirt.io/kvm", "1")
	pod.Spec.Containers[0].Resources.Requests["devices.kubevirt.io/kvm"] = resource.MustParse("1")
	pod.Spec.Containers[0].Resources.Requests["hugepages-2Mi"] = resource.MustParse("64Mi")
	for name, tc := range map[string]struct {
		hard, used corev1.ResourceList
		edit       func(*corev1.ResourceQuota)
		want       string
	}{
		"room for all":         {hard: list("cpu", "4", "pods", "2"), used: list("cpu", "2", "pods", "1")},
		"cpu":                  {hard: list("cpu", "4"), used: list("cpu", "2500m"), want: "cpu"},
		"requests.cpu":         {hard: list("requests.cpu", "4"), used: list("requests.cpu", "2500m"), want: "requests.cpu"},
		"limits.memory":        {hard: list("limits.memory", "8Gi"), used: list("limits.memory", "4Gi"), want: "limits.memory"},
		"pods":                 {hard: list("pods", "1"), used: list("pods", "1"), want: "pods"},
		"count/pods":           {hard: list("count/pods", "1"), used: list("count/pods", "1"), want: "count/pods"},
		"devices":              {hard: list("requests.devices.kubevirt.io/kvm", "0"), want: "requests.devices.kubevirt.io/kvm"},
		"hugepages":            {hard: list("hugepages-2Mi", "32Mi"), want: "hugepages-2Mi"},
		"two of them, by name": {hard: list("pods", "0", "cpu", "1"), want: "cpu pods"},
		"over by others alone": {hard: list("services", "1"), used: list("services", "5")},
		"not counted yet":      {edit: func(q *corev1.ResourceQuota) { q.Spec.Hard = list("cpu", "1") }},
		"for some Pods only": {hard: list("pods", "0"), edit: func(q *corev1.ResourceQuota) {
			q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		}},
		"for some classes only": {hard: list("pods", "0"), edit: func(q *corev1.ResourceQuota) { q.Spec.ScopeSelector = &corev1.ScopeSelector{} }},
	} {
		t.Run(name, func(t *testing.T) {
			q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Status: corev1.ResourceQuotaStatus{Hard: tc.hard, Used: tc.used}}
			if tc.edit != nil {
				tc.edit(q)
			}
			var got []string
			for _, s := range placement.CheckQuota(pod, []*corev1.ResourceQuota{q}) {
				got = append(got, string(s.Resource))
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("short are %q, want %q", got, tc.want)
			}
		})
	}
	if err := error(&placement.QuotaError{}); !errors.Is(err, placement.ErrQuota) {
		t.Error("a QuotaError is no ErrQuota")
	}
}

func TestS14_37AGuestThatLeavesRoot(t *testing.T) {
	for name, tc := range map[string]struct {
		user      uint64
		annotated bool
		root      bool
		want      *uint64
	}{
		"was root, is not to be":     {0, false, false, new(uint64(107))},
		"is the user already":        {107, false, false, nil},
		"is annotated already":       {0, true, false, nil},
		"was not root, is to be":     {107, true, true, new(uint64(0))},
		"is root, as all guests are": {0, false, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Config.Root = tc.root
			w.VMI.Status.RuntimeUser = tc.user
			if tc.annotated {
				w.VMI.Annotations[v1.DeprecatedNonRootVMIAnnotation] = "true"
			}
			w.Until(v1.MigrationScheduling)
			if w.VMI.Status.RuntimeUser != tc.user {
				t.Error("the VMI is another user's before it is handed off")
			}
			w.PodBecomesReady(targetNode)
			w.Passes()
			want := tc.user
			if tc.want != nil {
				want = *tc.want
			}
			_, annotated := w.VMI.Annotations[v1.DeprecatedNonRootVMIAnnotation]
			if wantNote := tc.annotated && tc.want == nil || tc.want != nil && *tc.want != 0; w.VMI.Status.RuntimeUser != want || annotated != wantNote {
				t.Errorf("user %d, annotated %v; want %d, %v", w.VMI.Status.RuntimeUser, annotated, want, wantNote)
			}
		})
	}
}
