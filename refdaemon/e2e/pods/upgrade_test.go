// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/refdaemon/authority"
)

var guests = flag.Int("guests", 4, "guests of TestUpgrade_RollsWhileGuestsRun, of which two move")

// slowLabel marks guests that slow's policy is for.
const slowLabel = "slow"

// slow creates a policy for the bandwidth of slow guests, which have some 60 MiB of memory to be sent.
func slow(t *testing.T, bandwidth string) {
	t.Helper()
	c, rate := cluster(t), resource.MustParse(bandwidth)
	p := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Spec: v1alpha1.MigrationPolicySpec{
		Selectors:             &v1alpha1.Selectors{VirtualMachineInstanceSelector: v1alpha1.LabelSelector{slowLabel: "true"}},
		BandwidthPerMigration: &rate, CompletionTimeoutPerGiB: ptr.To(int64(0)),
	}}
	must(t, c.Client.Create(t.Context(), p))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), p)) })
}

// slowly makes a guest one of slow's.
func slowly(vmi *v1.VirtualMachineInstance) { vmi.Labels[slowLabel] = "true" }

// awaitMoving waits until the guest's memory is on its way.
func (s *scene) awaitMoving(m *v1.VirtualMachineInstanceMigration) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "the migration to run", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if m.Status.Phase != v1.MigrationRunning {
			return fmt.Errorf("it is %s", m.Status.Phase)
		}
		return nil
	}))
}

// TestUpgrade_RollsWhileGuestsRun: Deployment and DaemonSet are replaced, Pod by Pod, while guests run and two of them move: no guest
// notices. What they are replaced by has short-lived certificates, so that those of both agents are renewed while a guest moves.
func TestUpgrade_RollsWhileGuestsRun(t *testing.T) {
	nightly(t)
	slow(t, "3Mi")
	t.Cleanup(func() { rollControllers(t, false) })
	var vmis []*v1.VirtualMachineInstance
	for n := range max(*guests, 2) {
		vmi := newGuest(fmt.Sprintf("guest-%d", n))
		if n < 2 {
			slowly(vmi)
		}
		vmis = append(vmis, vmi)
	}
	all := bootAll(t, vmis...)
	moving := map[*scene]*v1.VirtualMachineInstanceMigration{}
	for _, s := range all[:2] {
		moving[s] = s.begin()
	}
	for s, m := range moving {
		s.awaitMoving(m)
	}
	began := time.Now()
	rollControllers(t, true)
	rollAgents(t)
	for s, m := range moving {
		s.arrive(m)
		if end := m.Status.MigrationState.EndTimestamp; end == nil || end.Time.Before(began.Truncate(time.Second)) {
			t.Errorf("%s ended at %v, before the upgrade began at %v: nothing is shown", m.Name, end, began)
		}
	}
	for _, s := range all {
		s.beats("", 5)
		s.awaitRunning(s.vmi.Status.NodeName)
	}
	all[0].migrate()
	all[0].renewed()
	for _, s := range all {
		s.beats("", 5)
		s.unbroken()
		s.single()
	}
}

// shortLived is the flag of the controllers for certificates of agents that are soon renewed.
const shortLived = "--node-cert-lifetime=15s"

// rollControllers replaces the controllers, one after the other, by ones that make short-lived certificates, or not.
func rollControllers(t *testing.T, short bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin := shared.cluster.Client
	var d appsv1.Deployment
	must(t, admin.Get(ctx, client.ObjectKey{Namespace: "virtloom-system", Name: "virtloom-controller"}, &d))
	was, c := d.DeepCopy(), &d.Spec.Template.Spec.Containers[0]
	c.Args = slices.DeleteFunc(c.Args, func(arg string) bool { return arg == shortLived })
	if short {
		c.Args = append(c.Args, shortLived)
	}
	must(t, admin.Patch(ctx, &d, client.MergeFrom(was)))
	rollout(t, d.Namespace, "status", "deployment/"+d.Name)
}

// rollAgents replaces the agents, one after the other.
func rollAgents(t *testing.T) {
	t.Helper()
	rollout(t, "virtloom-node", "restart", "daemonset/virtloom-node")
	rollout(t, "virtloom-node", "status", "daemonset/virtloom-node")
}

func rollout(t *testing.T, namespace, verb, what string) {
	t.Helper()
	if out, err := kubectl("-n", namespace, "rollout", verb, what); err != nil {
		t.Fatalf("kubectl rollout %s %s: %v\n%s", verb, what, err, out)
	}
}

// renewed checks that both agents got a certificate between begin and end of the guest's last migration.
func (s *scene) renewed() {
	s.Helper()
	st := s.vmi.Status.MigrationState
	if st == nil || st.StartTimestamp == nil || st.EndTimestamp == nil {
		s.Fatalf("the state of the migration is %+v", st)
	}
	var list certificatesv1.CertificateSigningRequestList
	must(s.T, s.c.Client.List(s.Context(), &list))
	renewals := map[string]int{}
	for i := range list.Items {
		r := &list.Items[i]
		during := !r.CreationTimestamp.Before(st.StartTimestamp) && !st.EndTimestamp.Before(&r.CreationTimestamp)
		if r.Spec.SignerName == authority.SignerName && len(r.Status.Certificate) > 0 && during {
			renewals[strings.Join(r.Spec.Extra["authentication.kubernetes.io/node-name"], "")]++
		}
	}
	for _, n := range s.c.Nodes {
		if renewals[n.Name()] == 0 {
			s.Errorf("between %v and %v the agents got these certificates: %v", st.StartTimestamp, st.EndTimestamp, renewals)
		}
	}
}
