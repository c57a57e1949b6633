// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// lease is what replicas of the controller hold in turn.
const lease = "virtloom-controller"

// leads is the metric of a replica that says whether it does.
const leads = "leader_election_master_status"

// replica is one of several controllers; token is shown for its metrics.
type replica struct {
	*daemon
	token string
}

// election is what two replicas are about.
type election struct {
	*world
	leader, standby *replica
	terms           *terms
	// first is the term of the leader, released the one after it, without a holder.
	first, released coordinationv1.LeaseSpec
}

// testElection runs two replicas, each with the token of its Pod, and ends the one that leads while guests are made.
func (w *world) testElection(t *testing.T) {
	w.testPods(t)
	w.unasked(t)
	e := w.elect(t)
	before := w.guests(t, "before")
	w.served(t, before)
	e.testWarm(t)
	meanwhile := w.guests(t, "unserved-0", "unserved-1", "unserved-2", "unserved-3")
	must(t, syscall.Kill(e.leader.Pid(), syscall.SIGTERM))
	meanwhile = append(meanwhile, w.guests(t, "meanwhile-0", "meanwhile-1")...)
	e.testSuccession(t)
	after := w.guests(t, "after")
	all := slices.Concat(before, meanwhile, after)
	w.served(t, all)
	made := e.makers(t)
	for _, vmi := range all {
		is := made[string(vmi.UID)]
		switch {
		case vmi.Name == "before" && !slices.Equal(is, []string{e.leader.pod}),
			vmi.Name == "after" && !slices.Equal(is, []string{e.standby.pod}),
			// A process that was terminated during a request may not have received its success.
			len(is) > 1:
			t.Errorf("%s led, then %s: Pods of guest %s are made by %v", e.leader.pod, e.standby.pod, vmi.Name, is)
		}
		w.gone(t, vmi)
	}
	must(t, e.standby.Stop(patience))
	e.standby.ended(t)
	if last := e.terms.next(t); ptr.Deref(last.HolderIdentity, "") != "" {
		t.Errorf("after the last replica the lease has %+v", last)
	}
}

// elect starts two replicas and waits until one of them leads.
func (w *world) elect(t *testing.T) *election {
	t.Helper()
	e := &election{world: w, terms: w.terms(t)}
	pods, err := w.pods(t.Context(), "controller")
	must(t, err)
	a, b := w.replica(t, &pods[0]), w.replica(t, &pods[1])
	w.await(t, "one replica to lead", func(ctx context.Context) error {
		x, err := a.metric(ctx, leads)
		y, err2 := b.metric(ctx, leads)
		if err := errors.Join(err, err2); err != nil || x+y != 1 {
			return fmt.Errorf("the first says %v, the second %v %w", x, y, err)
		}
		if e.leader, e.standby = a, b; y == 1 {
			e.leader, e.standby = b, a
		}
		return nil
	})
	e.first = e.terms.next(t)
	if ptr.Deref(e.first.HolderIdentity, "") == "" || ptr.Deref(e.first.LeaseTransitions, 0) != 0 {
		t.Fatalf("the lease begins with %+v", e.first)
	}
	return e
}

// testWarm waits until the replica that does not lead knows what there would be to do, and sees that it does none of it.
func (e *election) testWarm(t *testing.T) {
	e.await(t, "the other replica to be warm", func(ctx context.Context) error {
		waiting, err := e.standby.metric(ctx, "workqueue_depth")
		if err != nil || waiting == 0 {
			return fmt.Errorf("%v objects wait %w", waiting, err)
		}
		return nil
	})
	done, err := e.standby.metric(t.Context(), "controller_runtime_reconcile_total")
	must(t, err)
	if done != 0 {
		t.Errorf("a replica that does not lead has looked at %v objects", done)
	}
	for _, r := range []*replica{e.leader, e.standby} {
		if err := (&question{url: r.health + "/readyz?verbose"}).want(t.Context(), http.StatusOK, "[+]caches ok", "[+]lease ok"); err != nil {
			t.Errorf("%s: %v", r.pod, err)
		}
	}
}

// testSuccession waits for the end of the leader and for the other to lead, which does not have to wait for the lease
// to run out: its holder gave it up.
func (e *election) testSuccession(t *testing.T) {
	e.leader.ended(t)
	now, err := e.clientset.CoordinationV1().Leases(rbac.Namespace).Get(t.Context(), lease, metav1.GetOptions{})
	must(t, err)
	if ptr.Deref(now.Spec.HolderIdentity, "") == *e.first.HolderIdentity {
		t.Error("the replica that led has ended, and holds the lease")
	}
	e.released = e.terms.next(t)
	if is := ptr.Deref(e.released.HolderIdentity, ""); is != "" || e.released.RenewTime == nil {
		t.Fatalf("%q holds the lease, which nobody gave up: %+v", is, e.released)
	}
	second := e.terms.next(t)
	if ptr.Deref(second.HolderIdentity, "") == *e.first.HolderIdentity || ptr.Deref(second.LeaseTransitions, 0) != 1 {
		t.Errorf("after %+v the lease has %+v", e.first, second)
	}
	e.await(t, "the other replica to lead", func(ctx context.Context) error {
		is, err := e.standby.metric(ctx, leads)
		if err != nil || is != 1 {
			return fmt.Errorf("it says %v %w", is, err)
		}
		return nil
	})
}

// replica runs a controller that others run beside.
func (w *world) replica(t *testing.T, pod *corev1.Pod) *replica {
	t.Helper()
	r := &replica{token: w.scraper, daemon: w.run(t, "controller", pod, "--leader-elect", "--leader-elect-namespace="+pod.Namespace)}
	t.Cleanup(func() {
		if err := r.Stop(patience); err != nil {
			t.Error(err)
		}
	})
	return r
}

// metric is the sum of a metric over its labels.
func (r *replica) metric(ctx context.Context, name string) (sum float64, err error) {
	text, status, err := (&question{r.metrics, r.token}).ask(ctx)
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("%s: status %d %w", r.metrics, status, err)
	}
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(line, name+"{"); is {
			one, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			if err != nil {
				return 0, err
			}
			sum += one
		}
	}
	return sum, nil
}

// ended waits for the end of a replica that was asked for.
func (r *replica) ended(t *testing.T) {
	t.Helper()
	select {
	case <-r.Done():
	case <-time.After(patience):
		t.Fatalf("%s does not end", r.pod)
	}
	var exit *exec.ExitError
	if err := r.Ended(); errors.As(err, &exit) {
		t.Errorf("asked to end: %v", err)
	}
}

// terms are the times for which the lease has one holder, or none.
type terms struct {
	watch.Interface
	holder *string // nil before the first
}

func (w *world) terms(t *testing.T) *terms {
	t.Helper()
	changes, err := w.clientset.CoordinationV1().Leases(rbac.Namespace).Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: lease}))
	must(t, err)
	t.Cleanup(changes.Stop)
	return &terms{Interface: changes}
}

// next waits for the next term and returns how it begins.
func (s *terms) next(t *testing.T) coordinationv1.LeaseSpec {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		select {
		case e := <-s.ResultChan():
			l, is := e.Object.(*coordinationv1.Lease)
			if !is || e.Type == watch.Deleted {
				t.Fatalf("the lease: %+v", e)
			}
			if holder := ptr.Deref(l.Spec.HolderIdentity, ""); s.holder == nil || *s.holder != holder {
				s.holder = &holder
				return l.Spec
			}
		case <-ctx.Done():
			t.Fatalf("the lease is held by %q all the time", ptr.Deref(s.holder, ""))
		}
	}
}

// guests makes guests that no node takes, for whom a controller alone cares.
func (w *world) guests(t *testing.T, names ...string) []*v1.VirtualMachineInstance {
	t.Helper()
	var made []*v1.VirtualMachineInstance
	for _, name := range names {
		vmi := guest(name)
		vmi.Spec.NodeSelector = map[string]string{"virtloom.test/nowhere": "true"}
		must(t, w.Create(t.Context(), vmi))
		made = append(made, vmi)
	}
	return made
}

// served waits until each VMI has a Pod and its status shows that.
func (w *world) served(t *testing.T, guests []*v1.VirtualMachineInstance) {
	t.Helper()
	for _, vmi := range guests {
		w.phase(t, vmi, v1.Scheduling)
		var pods corev1.PodList
		must(t, w.List(t.Context(), &pods, client.InNamespace(vmi.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(vmi.UID)}))
		if len(pods.Items) != 1 {
			t.Errorf("guest %s has %d Pods", vmi.Name, len(pods.Items))
		}
	}
}

// makers returns the replicas that created the Pods of each VMI. The one that led first writes until it gives up the lease,
// the other after that. Their logs about the election itself are ignored.
func (e *election) makers(t *testing.T) map[string][]string {
	t.Helper()
	requests, err := e.Requests()
	must(t, err)
	made := map[string][]string{}
	for i := range requests {
		q := &requests[i]
		// A question whether a client may see metrics writes nothing.
		reads := q.Verb == "get" || q.Verb == "list" || q.ObjectRef.Resource == "tokenreviews" || q.ObjectRef.Resource == "subjectaccessreviews"
		if len(q.User.Extra.Pods) != 1 || q.ObjectRef.Resource == "events" || reads {
			continue
		}
		who := q.User.Extra.Pods[0]
		if late := q.Received.After(e.released.RenewTime.Time); late && who == e.leader.pod || !late && who == e.standby.pod {
			t.Errorf("%s led until %s, then %s; %s: %s %s at %s", e.leader.pod, e.released.RenewTime, e.standby.pod, who, q.What(), q.ObjectRef.Name, q.Received)
		}
		if q.What() == "create pods" && q.Accepted() {
			var pod corev1.Pod
			must(t, json.Unmarshal(q.RequestObject, &pod))
			of := pod.Labels[v1.CreatedByLabel]
			made[of] = append(made[of], who)
		}
	}
	return made
}
