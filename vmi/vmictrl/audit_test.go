// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/internal/rig"
)

// audit returns the requests of the namespace that were made before the call.
func (w *world) audit() []rig.Request {
	w.t.Helper()
	return w.auditAll()[w.ns]
}

// auditAll returns the requests that were made before the call, by namespace.
func (w *world) auditAll() map[string][]rig.Request {
	w.t.Helper()
	marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "marker-"}}
	w.create(marker)
	w.delete(marker)
	var out map[string][]rig.Request
	w.eventually(func() string {
		requests, err := w.Requests()
		if err != nil {
			w.t.Fatal(err)
		}
		out = map[string][]rig.Request{}
		for _, a := range requests {
			if a.ObjectRef.Resource == "configmaps" && a.ObjectRef.Name == marker.Name && a.Verb == "delete" {
				return ""
			}
			out[a.ObjectRef.Namespace] = append(out[a.ObjectRef.Namespace], a)
		}
		return "the audit log does not have all requests yet"
	})
	return out
}

// onePodEach fails unless exactly n Pods were ever created, each once. A creation that was cut
// off may have succeeded.
func (w *world) onePodEach(n int) {
	w.t.Helper()
	onePodEach(w.t, w.audit(), n)
}

func onePodEach(t *testing.T, requests []rig.Request, n int) {
	t.Helper()
	made, perhaps := map[string]int{}, map[string]int{}
	for _, a := range requests {
		switch {
		case a.What() != "create pods" || a.DryRun():
		case a.Accepted():
			made[a.ObjectRef.Name]++
		case cutOff(a):
			perhaps[a.ObjectRef.Name] = 1
		}
	}
	maps.Copy(perhaps, made)
	made = perhaps
	if len(made) != n || slices.ContainsFunc(slices.Collect(maps.Values(made)), func(times int) bool { return times != 1 }) {
		t.Errorf("Pods were created %v, want %d, once each", made, n)
	}
}

// writes counts the controller's writes, either the accepted or the rejected ones.
func (w *world) writes(refused bool) map[string]int {
	w.t.Helper()
	return written(w.audit(), func(q rig.Request) bool { return q.Accepted() != refused })
}

// written counts the matching writes of the controller.
func written(requests []rig.Request, of func(rig.Request) bool) map[string]int {
	out := map[string]int{}
	for _, a := range requests {
		if a.User.Username == rig.UserController && !a.ReadOnly() && of(a) {
			out[a.What()]++
		}
	}
	return out
}
