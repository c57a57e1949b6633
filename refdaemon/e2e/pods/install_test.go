// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
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

// noneForbidden reports requests of virtloom's that were forbidden, in all that the tests have done.
func noneForbidden(c *realcluster.Cluster) error {
	requests, err := c.Rig.Requests()
	if err != nil {
		return err
	}
	n, errs := 0, []error(nil)
	for i := range requests {
		q := &requests[i]
		if !strings.HasPrefix(q.User.Username, "system:serviceaccount:virtloom-") || removed.during(q.Received) {
			continue
		}
		n++
		if code := q.ResponseStatus.Code; code == http.StatusForbidden || code == http.StatusUnauthorized {
			errs = append(errs, fmt.Errorf("%s: %s %s: %d", q.User.Username, q.Verb, q.URI, code))
		}
	}
	if n == 0 && removed.from.IsZero() {
		errs = append(errs, errors.New("virtloom made no request"))
	}
	return errors.Join(errs...)
}

// TestRequests_Writes: how often virtloom writes for a start and a migration on real nodes, by the audit log. Of a migration's progress
// there are as many statuses as it takes time, so that they are not counted. The numbers are in docs/performance.md.
func TestRequests_Writes(t *testing.T) {
	// That a VMI waits for a node is a write, and so is that it no longer does.
	must(t, cluster(t).AwaitSchedulable(t.Context(), patience))
	from := time.Now()
	s := boot(t, newGuest("counted"))
	s.awaitChecksums()
	pods, err := s.pods(t.Context())
	must(t, err)
	s.awaitAddress(pods[0].Status.PodIP)
	s.awaitStatus("the VMI to be ready", func(vmi *v1.VirtualMachineInstance) error {
		for _, c := range vmi.Status.Conditions {
			if c.Type == v1.VirtualMachineInstanceReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", vmi.Status.Conditions)
	})
	s.wrote("a start", from, map[string]int{"virtloom-controller": 6, "virtloom-node": 3})
	from = time.Now()
	s.migrate()
	must(t, refcluster.Await(t.Context(), patience, "the Pod of the source to end", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err == nil && len(pods) != 1 {
			err = fmt.Errorf("there are %d Pods", len(pods))
		}
		return err
	}))
	s.wrote("a migration", from, map[string]int{"virtloom-controller": 11, "virtloom-node": 4})
}

// wrote checks how often each service account of virtloom's has written objects in the tenant's namespace since then, events left out.
func (s *scene) wrote(what string, since time.Time, most map[string]int) {
	s.Helper()
	requests, err := s.c.Rig.Requests()
	must(s.T, err)
	all, kinds, seen := map[string]int{}, map[string]map[string]int{}, map[string]bool{}
	for i := range requests {
		q := &requests[i]
		user, ours := strings.CutPrefix(q.User.Username, "system:serviceaccount:virtloom-")
		_, user, _ = strings.Cut(user, ":")
		if !ours || q.ReadOnly() || q.ObjectRef.Namespace != s.key.Namespace || q.ObjectRef.Resource == "events" || q.Received.Before(since) {
			continue
		}
		kind, step := q.What(), stepOf(q)
		switch {
		case !q.Accepted():
			kind = "refused"
		case seen[step]:
			kind = "progress"
		default:
			all[user]++
		}
		seen[step] = step != ""
		if kinds[user] == nil {
			kinds[user] = map[string]int{}
		}
		kinds[user][kind]++
	}
	for user, n := range most {
		s.Logf("%s takes %d writes of %s: %v", what, all[user], user, kinds[user])
		if all[user] > n || all[user] == 0 {
			s.Errorf("%s takes %d writes of %s, want %d at most: %v", what, all[user], user, n, kinds[user])
		}
	}
}

// stepOf returns the step of a migration that has statuses of its progress; empty for any other write.
func stepOf(q *rig.Request) string {
	var o struct {
		Metadata struct{ Annotations map[string]string }
		Status   struct{ Phase string }
	}
	if !q.Accepted() || q.ResponseObject == nil || json.Unmarshal(q.ResponseObject, &o) != nil {
		return ""
	}
	switch {
	case q.ObjectRef.Resource == "virtualmachineinstancemigrations" && o.Status.Phase == string(v1.MigrationRunning):
		return "the migration is running"
	case strings.Contains(o.Metadata.Annotations[handoff.Annotation], `"state":"`+string(handoff.Moving)+`"`):
		return "the VMI is moving"
	}
	return ""
}
