// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/handoff"
)

func TestNode(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*testing.T, *pair){
		"moves a guest there and back":                         movesThereAndBack,
		"lets a stale cache neither start nor end a guest":     staleCache,
		"leaves guests alone while their kind is not served":   kindNotServed,
		"ends a guest whose object was removed by force":       removedByForce,
		"starts a guest only when its predecessor has ended":   recreated,
		"leaves a domain of somebody else alone":               somebodyElses,
		"removes files of a guest that went while it was away": wentMeanwhile,
		"notices an end without an event":                      lostEvents,
		"leaves a guest with a broken lease alone":             brokenLease,
		"keeps a guest whose lease was lost":                   lostLease,
		"serves a controller that knows no lease":              stockController,
		"takes a stalled guest back if it never left":          stalledAndNotLeft,
		"finds a stalled guest at the target":                  stalledAndArrived,
		"is not held up by any number of guests that hang":     manyHang,
		"reports what keeps a guest from starting":             cannotStart,
		"keeps a guest through a lost connection":              lostConnection,
		"reports beside other writers":                         reportsBeside,
		"does not report of a guest that it has lost":          reportsTooLate,
	} {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, c)) })
	}
}

func movesThereAndBack(t *testing.T, p *pair) {
	p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.move(t, vmi, p.b, "there")
	p.runsOn(t, vmi, p.b)
	eventually(t, "the source to be tidy", func() bool { return p.a.empty(vmi) })
	p.move(t, vmi, p.a, "back")
	p.runsOn(t, vmi, p.a)
	eventually(t, "the source to be tidy", func() bool { return p.b.empty(vmi) })
	p.finish(t, vmi)
}

// frozen is a cache that is stuck at one object.
type frozen struct {
	cache.Cache
	at *v1.VirtualMachineInstance
}

func (f frozen) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	f.at.DeepCopyInto(o.(*v1.VirtualMachineInstance))
	return nil
}

// passes makes a few passes of an agent whose cache is stuck.
func (n *node) passes(t *testing.T, at *v1.VirtualMachineInstance) {
	t.Helper()
	_, r := n.agent(t)
	r.Caches = &domainctrl.Caches{Owned: frozen{r.Caches.Owned, at}, Incoming: frozen{r.Caches.Incoming, at}, Pods: r.Caches.Pods}
	for range 3 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(at)})
		if err != nil {
			t.Fatal(err)
		}
		if result.RequeueAfter > 0 && result.RequeueAfter < time.Second {
			t.Errorf("it looks again in %v, though nothing can have changed", result.RequeueAfter)
		}
	}
}

func staleCache(t *testing.T, p *pair) {
	stop := p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	offered := vmi.DeepCopy()
	p.step(t, vmi, handoff.Event{Kind: handoff.Withdraw}, func(*v1.VirtualMachineInstance) {})
	p.offer(t, vmi, p.b)
	p.runsOn(t, vmi, p.b)
	p.a.passes(t, offered)
	if n := p.a.Calls("Start"); n > 0 {
		t.Errorf("a withdrawn offer started the guest")
	}
	stop()

	// In b's stuck cache the VMI is still an earlier object, or on another node.
	earlier, elsewhere := vmi.DeepCopy(), offered.DeepCopy()
	earlier.UID, elsewhere.Status.Phase = "earlier", v1.Running
	p.b.passes(t, earlier)
	p.b.passes(t, elsewhere)
	if !p.b.running(vmi) || p.b.empty(vmi) {
		t.Errorf("a stale cache ended the guest or removed its files: %+v", p.b.state(vmi))
	}
}

// unserved answers as an API server that does not serve the kind.
type unserved struct{ client.Reader }

func (unserved) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Resource: "virtualmachineinstances"}, key.Name, "404 page not found", 0, true)
}

func kindNotServed(t *testing.T, p *pair) {
	stop := p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	_, r := p.a.agent(t)
	r.APIReader = unserved{r.APIReader}
	r.Caches = &domainctrl.Caches{Owned: empty{r.Caches.Owned}, Incoming: empty{r.Caches.Incoming}, Pods: r.Caches.Pods}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}); err == nil {
		t.Error("it took the answer for the guest's end")
	}
	if !p.a.running(vmi) || p.a.Calls("Shutdown") > 0 {
		t.Errorf("the guest is %+v", p.a.state(vmi))
	}
}

// empty is an empty cache.
type empty struct{ cache.Cache }

func (empty) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "virtualmachineinstances"}, key.Name)
}

func removedByForce(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	domainfixture.Must(t, p.remove(t.Context(), vmi))
	eventually(t, "nothing to be left", func() bool { return p.a.empty(vmi) })
	if p.a.Calls("Destroy") > 0 {
		t.Error("the guest was not asked to shut down")
	}
}

func recreated(t *testing.T, p *pair) {
	stop := p.a.start(t)
	first := p.create(t, "guest")
	p.offer(t, first, p.a)
	p.runsOn(t, first, p.a)
	stop()
	domainfixture.Must(t, p.remove(t.Context(), first))
	second := p.create(t, "guest")
	p.offer(t, second, p.a)
	p.a.start(t)
	p.runsOn(t, second, p.a)
	eventually(t, "nothing to be left of the first", func() bool {
		_, err := os.Stat(p.a.workspace().Dir(first.UID))
		return errors.Is(err, os.ErrNotExist)
	})
	if st := p.a.state(second); st.Metadata.UID != second.UID || p.a.Calls("Shutdown") == 0 {
		t.Errorf("the domain is that of %s; the first was asked %d times to end", st.Metadata.UID, p.a.Calls("Shutdown"))
	}
}

func somebodyElses(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	name := domain.Name(vmi.Namespace, vmi.Name)
	def := minimal(name)
	domainfixture.Must(t, p.a.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: name, Definition: def}))
	p.a.start(t)
	p.offer(t, vmi, p.a)
	p.until(t, "a condition", vmi, func(handoff.Lease) bool { return synchronized(vmi) == corev1.ConditionFalse })
	if st := p.a.state(vmi); st == nil || st.UUID != def.UUID || st.Status != domain.StatusRunning {
		t.Fatalf("the domain is %+v", st)
	}
	domainfixture.Must(t, p.a.Apply(t.Context(), domain.Operation{Verb: domain.Destroy, Domain: name}))
	domainfixture.Must(t, p.a.Apply(t.Context(), domain.Operation{Verb: domain.Undefine, Domain: name}))
	p.runsOn(t, vmi, p.a)
}

func synchronized(vmi *v1.VirtualMachineInstance) corev1.ConditionStatus {
	for _, c := range vmi.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceSynchronized {
			return c.Status
		}
	}
	return ""
}

func wentMeanwhile(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	if _, err := p.a.workspace().Prepare(t.Context(), vmi, domain.Host{Arch: "x86_64"}); err != nil {
		t.Fatal(err)
	}
	domainfixture.Must(t, p.remove(t.Context(), vmi))
	p.a.start(t)
	eventually(t, "nothing to be left", func() bool { return p.a.empty(vmi) })
}

func lostEvents(t *testing.T, p *pair) {
	p.a.edit = func(r *domainctrl.Reconciler) { r.Resync = 50 * time.Millisecond }
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.a.LoseEvents(true)
	p.a.PowerOff(domain.Name(vmi.Namespace, vmi.Name))
	p.until(t, "the end to be noticed", vmi, func(l handoff.Lease) bool {
		return l.State == handoff.Released && vmi.Status.Phase == v1.Succeeded
	})
}

func brokenLease(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	was := vmi.Annotations[handoff.Annotation]
	base := vmi.DeepCopy()
	vmi.Annotations[handoff.Annotation] = "{"
	domainfixture.Must(t, p.Patch(t.Context(), vmi, client.MergeFrom(base)))
	domainfixture.Must(t, p.Delete(t.Context(), vmi.DeepCopy()))
	before := p.a.Calls("Get")
	eventually(t, "a few more looks", func() bool { return p.a.Calls("Get") > before+3 })
	if !p.a.running(vmi) {
		t.Fatalf("the guest is %+v", p.a.state(vmi))
	}
	base = vmi.DeepCopy()
	vmi.Annotations[handoff.Annotation] = was
	domainfixture.Must(t, p.Patch(t.Context(), vmi, client.MergeFrom(base)))
	p.until(t, "the guest to end", vmi, func(l handoff.Lease) bool { return l.State == handoff.Released })
}

func lostLease(t *testing.T, p *pair) {
	p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	base := vmi.DeepCopy()
	delete(vmi.Annotations, handoff.Annotation)
	domainfixture.Must(t, p.Patch(t.Context(), vmi, client.MergeFrom(base)))
	eventually(t, "the domain to follow", func() bool { return p.a.state(vmi).Metadata.Epoch == 0 })
	p.move(t, vmi, p.b, "job")
	p.runsOn(t, vmi, p.b)
	p.finish(t, vmi)
}

// stockController hands off and migrates by labels and status alone.
func stockController(t *testing.T, p *pair) {
	p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	noLease := func(edit func(*v1.VirtualMachineInstance)) {
		p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, _ handoff.Lease) error {
			edit(vmi)
			return nil
		})
	}
	p.launcherPod(t, vmi, p.a.name, "")
	noLease(func(vmi *v1.VirtualMachineInstance) { placeOn(vmi, p.a) })
	p.runsOn(t, vmi, p.a)
	for i, to := range []*node{p.b, p.a} {
		uid := types.UID([]string{"there", "back"}[i])
		p.launcherPod(t, vmi, to.name, uid)
		noLease(func(vmi *v1.VirtualMachineInstance) { askToMove(vmi, to, uid) })
		p.runsOn(t, vmi, to)
	}
	// A migration that it cancels at once leaves the guest where it is.
	p.b.Inject(memory.Fault{Call: "Host", Err: errors.New("not now")})
	noLease(func(vmi *v1.VirtualMachineInstance) { askToMove(vmi, p.b, "not wanted") })
	noLease(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState.Completed, vmi.Status.MigrationState.Failed = true, true
	})
	p.runsOn(t, vmi, p.a)
	p.finish(t, vmi)
}

// begun leaves the migration right after Begin was stored; the source has no agent.
func begun(t *testing.T, p *pair) *v1.VirtualMachineInstance {
	stop := p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.move(t, vmi, p.b, "job")
	p.until(t, "the target to be ready", vmi, func(l handoff.Lease) bool { return l.State == handoff.Prepared })
	p.step(t, vmi, handoff.Event{Kind: handoff.Begin, Node: p.a.name}, func(*v1.VirtualMachineInstance) {})
	return vmi
}

// stall breaks the migration after Begin, as when the libvirt daemon of the source ends during the
// switch.
func stall(t *testing.T, p *pair, between func(name string)) *v1.VirtualMachineInstance {
	vmi := begun(t, p)
	between(domain.Name(vmi.Namespace, vmi.Name))
	p.a.start(t)
	return vmi
}

func reverted(l handoff.Lease, tag types.UID) bool {
	o, ended := l.MoveOutcome(tag)
	return ended && o.Result == handoff.ResultReverted
}

func stalledAndNotLeft(t *testing.T, p *pair) {
	vmi := stall(t, p, func(name string) { p.a.SetState(name, domain.StatusPaused, domain.ReasonMigration) })
	p.until(t, "the guest to go on at the source", vmi, func(l handoff.Lease) bool {
		return l.State == handoff.Owned && l.Holder == p.a.name && reverted(l, "job") && p.a.running(vmi)
	})
	if m := vmi.Status.MigrationState; !m.Failed || !m.Completed || m.FailureReason == "" {
		t.Errorf("migration state %+v", m)
	}
	eventually(t, "the target to be tidy", func() bool { return p.b.empty(vmi) })
	p.finish(t, vmi)
}

func stalledAndArrived(t *testing.T, p *pair) {
	vmi := stall(t, p, func(name string) {
		p.b.LoseEvents(true)
		domainfixture.Must(t, p.a.Migrate(t.Context(), domain.MigrationRequest{Domain: name, DestinationURI: p.b.uri()}))
		// The source node goes down before it learns that.
		p.a.SetState(name, domain.StatusShutoff, domain.ReasonUnknown)
	})
	p.runsOn(t, vmi, p.b)
	eventually(t, "the source to be tidy", func() bool { return p.a.empty(vmi) })
	p.b.LoseEvents(false)
	p.finish(t, vmi)
}

func cannotStart(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	free := p.a.Inject(memory.Fault{Call: "Start", Err: errors.New("no memory left")})
	reported := &recorder{notes: make(chan string, 100)}
	p.a.edit = func(r *domainctrl.Reconciler) { r.Recorder = reported }
	p.a.start(t)
	p.offer(t, vmi, p.a)
	domainfixture.Says(t, errors.New(<-reported.notes), "SyncFailed", p.a.name, "Start", "no memory left")
	free()
	p.runsOn(t, vmi, p.a)
}

func lostConnection(t *testing.T, p *pair) {
	p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.a.Disconnect()
	domainfixture.Must(t, p.Delete(t.Context(), vmi.DeepCopy()))
	before := p.a.Calls("MigrationProgress")
	eventually(t, "a few looks in vain", func() bool { return p.a.Calls("MigrationProgress") > before+2 })
	if p.get(t, vmi); vmi.Status.Phase != v1.Running {
		t.Errorf("the guest is %s, while its state is unknown", vmi.Status.Phase)
	}
	p.a.Reconnect()
	p.until(t, "the guest to end", vmi, func(l handoff.Lease) bool { return l.State == handoff.Released && vmi.Status.Phase == v1.Succeeded })
}
