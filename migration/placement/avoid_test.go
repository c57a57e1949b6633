// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration/queue"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestAvoid(t *testing.T) {
	own := corev1.PreferredSchedulingTerm{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
	}}}
	required := &corev1.NodeSelector{}
	notIn := func(names ...string) corev1.PreferredSchedulingTerm {
		term := corev1.PreferredSchedulingTerm{Weight: avoidWeight}
		for _, n := range names {
			term.Preference.MatchFields = append(term.Preference.MatchFields, corev1.NodeSelectorRequirement{
				Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{n},
			})
		}
		return term
	}
	var many []string
	for i := range 2 * avoidMost {
		many = append(many, fmt.Sprintf("n%d", i))
	}
	for name, tc := range map[string]struct {
		have  *corev1.Affinity
		nodes []string
		want  *corev1.Affinity
	}{
		"no node leaves the Pod as it is": {},
		"nodes are a wish, not a rule": {
			nodes: []string{"a", "b"},
			want:  &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{notIn("a", "b")}}},
		},
		"what the owner wishes and demands stays": {
			have: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{own},
			}},
			nodes: []string{"a"},
			want: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{own, notIn("a")},
			}},
		},
		"a Pod does not grow without bound": {
			nodes: many,
			want:  &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{notIn(many[:avoidMost]...)}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			shared := tc.have.DeepCopy()
			pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: tc.have}}
			Avoid(pod, tc.nodes)
			if diff := cmp.Diff(tc.want, pod.Spec.Affinity); diff != "" {
				t.Errorf("affinity (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(shared, tc.have); diff != "" {
				t.Errorf("the affinity it had, which may be another Pod's too, was changed:\n%s", diff)
			}
		})
	}
}

func TestFullNodes(t *testing.T) {
	a := queue.NewAdmission(queue.Limits{Cluster: 9, Outbound: 9, Inbound: 2, Lent: 9}, queue.Options{})
	ask := func(name, target string, arriving bool) {
		a.Ask(queue.Claim{
			Key: types.NamespacedName{Namespace: "ns", Name: name}, Since: start, SourceNode: "source",
			TargetNode: target, Acting: target != "", Arriving: arriving,
		}, start)
	}
	check := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, a.Full()); diff != "" {
			t.Errorf("%s: full nodes (-want +got):\n%s", when, diff)
		}
	}
	check("at first")
	ask("1", "b", true)
	ask("2", "", false)
	check("one of two slots is taken")
	ask("2", "b", false)
	check("both are", "b")
	ask("3", "b", false)
	ask("4", "a", true)
	ask("5", "a", true)
	check("and one more waits", "a", "b")
	a.Release(types.NamespacedName{Namespace: "ns", Name: "1"}, start)
	check("who waited has entered", "a", "b")
	a.Release(types.NamespacedName{Namespace: "ns", Name: "2"}, start)
	a.Release(types.NamespacedName{Namespace: "ns", Name: "5"}, start)
	check("slots are free")
}
