// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/internal/rig"
)

// audited is the part of an audit event that the tests look at.
type audited struct {
	Verb      string `json:"verb"`
	ObjectRef struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
}

func (a audited) accepted() bool { return a.ResponseStatus.Code < 300 }

func (a audited) what() string {
	s := a.Verb + " " + a.ObjectRef.Resource
	if a.ObjectRef.Subresource != "" {
		s += "/" + a.ObjectRef.Subresource
	}
	return s
}

// audit returns the requests of the namespace that were made before the call.
func (w *world) audit() []audited {
	w.t.Helper()
	marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "marker-"}}
	w.create(marker)
	w.delete(marker)
	var out []audited
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

func (w *world) readAudit() []audited {
	w.t.Helper()
	f, err := os.Open(w.AuditLog())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []audited
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var a audited
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			continue // the line being written
		}
		if a.ObjectRef.Namespace == w.ns {
			out = append(out, a)
		}
	}
	return out
}

// created returns how often each Pod was created.
func (w *world) created() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, a := range w.audit() {
		if a.what() == "create pods" && a.accepted() {
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
	out := map[string]int{}
	for _, a := range w.audit() {
		if a.User.Username == rig.UserController && a.Verb != "get" && a.Verb != "list" && a.Verb != "watch" && a.accepted() != refused {
			out[a.what()]++
		}
	}
	return out
}
