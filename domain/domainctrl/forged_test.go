// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// TestForgedOwnership assigns VMIs to a node by every field that a user may write.
func TestForgedOwnership(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*testing.T, *pair){
		"an offer starts nothing":           forgedOffer,
		"an accepted start starts nothing":  forgedStart,
		"a move to a node prepares nothing": forgedMove,
		"a domain does not end another's":   forgedDomain,
		"a Pod gone at the start":           podGoneAtTheStart,
		"made anew while the guest runs":    madeAnew,
		"a running guest outlives its Pod":  podOfARunningGuest,
		"the Pod comes after the offer":     podComesLate,
	} {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, c)) })
	}
}

// unproven waits until the status reports that a launcher Pod is missing.
func (p *pair) unproven(t *testing.T, vmi *v1.VirtualMachineInstance) {
	t.Helper()
	p.until(t, "the object to say what is missing", vmi, func(handoff.Lease) bool {
		return slices.ContainsFunc(vmi.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
			return c.Type == v1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse && c.Reason == status.ReasonUnproven
		})
	})
	if p.a.state(vmi) != nil || !p.a.empty(vmi) {
		t.Errorf("the node has %+v, or files", p.a.state(vmi))
	}
}

// forge stores a lease as a user would.
func (p *pair) forge(t *testing.T, vmi *v1.VirtualMachineInstance, edit func(*v1.VirtualMachineInstance), events ...handoff.Event) {
	t.Helper()
	p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, l handoff.Lease) error {
		for _, e := range events {
			e.Epoch = l.Epoch
			var err error
			if l, _, err = handoff.Step(l, e, time.Now()); err != nil {
				return err
			}
		}
		edit(vmi)
		return handoff.Put(vmi, l)
	})
}

func forgedOffer(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.forge(t, vmi, func(vmi *v1.VirtualMachineInstance) { placeOn(vmi, p.a) }, handoff.Event{Kind: handoff.Offer, Node: p.a.name})
	p.unproven(t, vmi)
}

func forgedStart(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.forge(t, vmi, func(vmi *v1.VirtualMachineInstance) { placeOn(vmi, p.a) },
		handoff.Event{Kind: handoff.Offer, Node: p.a.name}, handoff.Event{Kind: handoff.Accept, Node: p.a.name})
	p.unproven(t, vmi)
}

func forgedMove(t *testing.T, p *pair) {
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.forge(t, vmi, func(vmi *v1.VirtualMachineInstance) {
		placeOn(vmi, p.a)
		vmi.Status.Phase = v1.Running
		askToMove(vmi, p.b, "job")
	}, handoff.Event{Kind: handoff.Offer, Node: p.a.name}, handoff.Event{Kind: handoff.Accept, Node: p.a.name},
		handoff.Event{Kind: handoff.Started, Node: p.a.name}, handoff.Event{Kind: handoff.Prepare, Node: p.b.name, Tag: "job"})
	p.until(t, "the target to say what is missing", vmi, func(l handoff.Lease) bool {
		return l.State == handoff.Preparing && strings.Contains(vmi.Status.MigrationState.FailureReason, "launcher Pod")
	})
	if !p.b.empty(vmi) {
		t.Error("the target has files of the guest")
	}
}

// forgedDomain has a domain of another name whose metadata claims the victim's UID, as the launcher
// of a hostile tenant may report it.
func forgedDomain(t *testing.T, p *pair) {
	p.a.start(t)
	victim := p.create(t, "victim")
	p.offer(t, victim, p.a)
	p.runsOn(t, victim, p.a)
	def := minimal(domain.Name(p.ns, "mine"))
	domainfixture.Must(t, domain.Metadata{Namespace: p.ns, Name: "mine", UID: victim.UID, Epoch: 1}.Put(def))
	domainfixture.Must(t, p.a.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}))
	mine := &v1.VirtualMachineInstance{}
	mine.Namespace, mine.Name = p.ns, "mine"
	eventually(t, "the domain without an object to end", func() bool { return p.a.state(mine) == nil })
	if _, err := os.Stat(p.a.workspace().Dir(victim.UID)); err != nil || !p.a.running(victim) {
		t.Errorf("the victim runs: %t, its files: %v", p.a.running(victim), err)
	}
	p.finish(t, victim)
}

// somePods is a cache that is stuck at some Pods.
type somePods struct {
	cache.Cache
	pods []*corev1.Pod
}

func (s somePods) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for _, p := range s.pods {
		list.(*corev1.PodList).Items = append(list.(*corev1.PodList).Items, *p)
	}
	return nil
}

func staleWith(r *domainctrl.Reconciler, pods ...*corev1.Pod) *domainctrl.Caches {
	return &domainctrl.Caches{Owned: empty{r.Caches.Owned}, Incoming: empty{r.Caches.Incoming}, Pods: somePods{r.Caches.Pods, pods}}
}

// podGoneAtTheStart has a Pod in the cache that the API server no longer has.
func podGoneAtTheStart(t *testing.T, p *pair) {
	_, r := p.a.agent(t)
	vmi := p.create(t, "guest")
	p.forge(t, vmi, func(vmi *v1.VirtualMachineInstance) { placeOn(vmi, p.a) }, handoff.Event{Kind: handoff.Offer, Node: p.a.name})
	r.Caches = staleWith(r, p.launcherPod(t, vmi, p.a.name, ""))
	var pods corev1.PodList
	domainfixture.Must(t, p.List(t.Context(), &pods, client.InNamespace(p.ns)))
	for i := range pods.Items {
		domainfixture.Must(t, p.Delete(t.Context(), &pods.Items[i], client.GracePeriodSeconds(0)))
	}
	for range 3 {
		pass(t, r, vmi)
	}
	p.unproven(t, vmi)
}

func madeAnew(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	domainfixture.Must(t, p.remove(t.Context(), vmi))
	again := p.create(t, "guest")
	p.offer(t, again, p.a)
	p.runsOn(t, again, p.a)
	if st := p.a.state(again); st.Metadata.UID != again.UID {
		t.Errorf("it is %s that runs", st.Metadata.UID)
	}
	// The first has ended before the second was started: there is one domain by that name.
	p.starts(t, p.a, 2)
	p.finish(t, again)
}

func podOfARunningGuest(t *testing.T, p *pair) {
	stop := p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	var pods corev1.PodList
	domainfixture.Must(t, p.List(t.Context(), &pods, client.InNamespace(p.ns)))
	for i := range pods.Items {
		domainfixture.Must(t, p.Delete(t.Context(), &pods.Items[i], client.GracePeriodSeconds(0)))
	}
	stop()
	_, r := p.a.agent(t)
	r.Caches = staleWith(r)
	for range 3 {
		pass(t, r, vmi)
	}
	p.runsOn(t, vmi, p.a)
}

func podComesLate(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.forge(t, vmi, func(vmi *v1.VirtualMachineInstance) { placeOn(vmi, p.a) }, handoff.Event{Kind: handoff.Offer, Node: p.a.name})
	p.unproven(t, vmi)
	p.launcherPod(t, vmi, p.a.name, "")
	p.runsOn(t, vmi, p.a)
	p.finish(t, vmi)
}
