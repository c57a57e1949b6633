// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/refcluster"
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

// TestRequests_Writes: a start and a migration on real nodes take no more writes of the controller than with simulated Pods
// (TestBurst, make bench-scale), where one VMI, unlike many at once, has all of its statuses written. The numbers are in
// docs/performance.md.
func TestRequests_Writes(t *testing.T) {
	from := time.Now()
	s := boot(t, newGuest("counted"))
	s.awaitChecksums()
	pods, err := s.pods(t.Context())
	must(t, err)
	s.awaitAddress(pods[0].Status.PodIP)
	s.awaitStatus("the VMI to be ready", func(vmi *v1.VirtualMachineInstance) error {
		for _, c := range vmi.Status.Conditions {
			if c.Type == v1.VirtualMachineInstanceReady && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", vmi.Status.Conditions)
	})
	s.wrote("a start", from, map[string]int{"virtloom-controller": 5, "virtloom-node": 4})
	from = time.Now()
	s.migrate()
	must(t, refcluster.Await(t.Context(), patience, "the Pod of the source to end", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err == nil && len(pods) != 1 {
			err = fmt.Errorf("there are %d Pods", len(pods))
		}
		return err
	}))
	s.wrote("a migration", from, map[string]int{"virtloom-controller": 9, "virtloom-node": 9})
}

// wrote checks how often each service account of virtloom's has written objects in the tenant's namespace since then, events left out.
func (s *scene) wrote(what string, since time.Time, most map[string]int) {
	s.Helper()
	requests, err := s.c.Rig.Requests()
	must(s.T, err)
	all, kinds := map[string]int{}, map[string]map[string]int{}
	for _, q := range requests {
		user, ours := strings.CutPrefix(q.User.Username, "system:serviceaccount:virtloom-")
		_, user, _ = strings.Cut(user, ":")
		if !ours || q.ReadOnly() || q.ObjectRef.Namespace != s.key.Namespace || q.ObjectRef.Resource == "events" || q.Received.Before(since) {
			continue
		}
		if kinds[user] == nil {
			kinds[user] = map[string]int{}
		}
		all[user]++
		kinds[user][q.What()]++
	}
	for user, n := range all {
		s.Logf("%s takes %d writes of %s: %v", what, n, user, kinds[user])
		if n > most[user] {
			s.Errorf("%s takes %d writes of %s, want %d at most: %v", what, n, user, most[user], kinds[user])
		}
	}
	if len(all) != len(most) {
		s.Errorf("%s is not in the audit log", what)
	}
}
