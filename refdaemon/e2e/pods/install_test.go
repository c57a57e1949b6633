// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"strings"
	"testing"
)

// TestUninstall_Refused: while a VMI exists, nothing that it needs can be deleted, and the message says what to do.
func TestUninstall_Refused(t *testing.T) {
	s := boot(t, newGuest("guarded"))
	for _, what := range [][]string{
		{"-n", "virtloom-node", "delete", "daemonset/virtloom-node"},
		{"-n", "virtloom-system", "delete", "deployment/virtloom-controller"},
		{"delete", "crd/virtualmachineinstances.kubevirt.io"},
		{"delete", "namespace/virtloom-node"},
	} {
		out, err := kubectl(what...)
		if err == nil || !strings.Contains(out, "kubectl get virtualmachineinstances") {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(what, " "), err, out)
		}
	}
	s.beats("", 3)
}

// TestRequests_NoneForbidden: in all that the tests have done no request of virtloom's was forbidden.
func TestRequests_NoneForbidden(t *testing.T) {
	s := boot(t, newGuest("audited"))
	s.migrate()
	requests, err := s.c.Rig.Requests()
	must(t, err)
	n := 0
	for _, q := range requests {
		if !strings.HasPrefix(q.User.Username, "system:serviceaccount:virtloom-") {
			continue
		}
		n++
		if q.ResponseStatus.Code == 403 || q.ResponseStatus.Code == 401 {
			t.Errorf("%s: %s %s: %d", q.User.Username, q.Verb, q.URI, q.ResponseStatus.Code)
		}
	}
	if n == 0 {
		t.Error("virtloom made no request")
	}
}
