// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/internal/rig"
)

// audit returns the requests of the namespace that were made before the call.
func (w *world) audit() []rig.Request {
	w.t.Helper()
	marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "marker-"}}
	w.create(marker)
	w.delete(marker)
	var out []rig.Request
	w.eventually(func() string {
		out = nil
		for _, a := range w.readAudit() {
			if a.ObjectRef.Resource == "configmaps" && a.ObjectRef.Name == marker.Name && a.Verb == "delete" {
				return ""
			}
			out = append(out, a)
		}
		return "the audit log does not have all requests yet"
	})
	return out
}

func (w *world) readAudit() []rig.Request {
	w.t.Helper()
	requests, err := w.Requests()
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(requests, func(q rig.Request) bool { return q.ObjectRef.Namespace != w.ns })
}

// created returns how often each Pod was created.
func (w *world) created() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, a := range w.audit() {
		if a.What() == "create pods" && a.Accepted() {
			out[a.ObjectRef.Name]++
		}
	}
	return out
}

// onePodEach fails unless each of the Pods that ever were was created once, and
// there were as many.
func (w *world) onePodEach(n int) {
	w.t.Helper()
	made := w.created()
	if len(made) != n || slices.ContainsFunc(slices.Collect(maps.Values(made)), func(times int) bool { return times != 1 }) {
		w.t.Errorf("Pods were created %v, want %d, once each", made, n)
	}
}

// writes counts what the controller wrote; refused says whether refused ones.
func (w *world) writes(refused bool) map[string]int {
	w.t.Helper()
	return w.requests(func(q rig.Request) bool { return q.Accepted() != refused })
}

// requests counts the writes of the controller that are of a kind.
func (w *world) requests(of func(rig.Request) bool) map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, a := range w.audit() {
		if a.User.Username == rig.UserController && a.Verb != "get" && a.Verb != "list" && a.Verb != "watch" && of(a) {
			out[a.What()]++
		}
	}
	return out
}
