// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// sluice holds back the events of a resource's watch while it is shut.
type sluice struct {
	resource string
	mu       sync.Mutex
	open     chan struct{} // closed while open
	cut      chan struct{} // closed when the held events are lost
	expired  bool          // no watch can resume
}

func newSluice(resource string) *sluice {
	s := &sluice{resource: resource, open: make(chan struct{}), cut: make(chan struct{})}
	close(s.open)
	return s
}

func (s *sluice) gate() (open, cut <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.cut
}

// lose drops the held events for good: the server no longer has them, only the current
// state.
func (s *sluice) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut, s.open = make(chan struct{}), make(chan struct{})
	s.expired = true
	close(s.open)
}

// tooOld reports whether a watch that resumes must be rejected, once.
func (s *sluice) tooOld(req *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	expired := s.expired && req.URL.Query().Get("sendInitialEvents") != "true"
	s.expired = s.expired && !expired
	return expired
}

func (s *sluice) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = make(chan struct{})
}

func (s *sluice) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.open)
}

// wrap is for rest.Config.Wrap.
func (s *sluice) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		watched := req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/"+s.resource) && req.URL.Query().Has("watch")
		if watched && s.tooOld(req) {
			gone := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`
			return &http.Response{StatusCode: http.StatusGone, Request: req, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
				Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(gone))}, nil
		}
		resp, err := next.RoundTrip(req)
		if err == nil && watched {
			_, cut := s.gate()
			resp.Body = &heldBody{ReadCloser: resp.Body, ctx: req.Context(), s: s, cut: cut}
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type heldBody struct {
	io.ReadCloser
	ctx context.Context
	s   *sluice
	cut <-chan struct{}
}

// Read passes data on once the sluice is open.
func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	open, _ := b.s.gate()
	select {
	case <-b.cut:
		return 0, io.ErrUnexpectedEOF
	default:
	}
	select {
	case <-open:
		return n, err
	case <-b.cut:
		return 0, io.ErrUnexpectedEOF
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

// heldBack lets the controller create a Pod that its cache does not observe, and triggers
// further passes.
func heldBack(w *world) {
	s := newSluice("pods")
	w.start(setup{wrap: s.wrap})
	first := w.guest("first") // proves that the caches have begun
	w.awaitPhase(first, v1.Scheduled)
	s.shut()
	g := w.guest("guest")
	w.awaitPhase(g, v1.Scheduling)
	w.eventually(func() string {
		for _, p := range w.awaitPods(2) {
			if p.Status.Phase != corev1.PodRunning {
				return "Pod " + p.Name + " does not run"
			}
		}
		return ""
	})
	// The other VMI is behind in the same event queue: when its status changes, the passes have
	// been made.
	for i := range 3 {
		w.change(g, func(g *v1.VirtualMachineInstance) {
			metav1.SetMetaDataAnnotation(&g.ObjectMeta, "example.test/poke", fmt.Sprint(i))
		})
		w.change(first, func(g *v1.VirtualMachineInstance) { g.Status.Conditions = nil })
		w.await(first, "a pass", func() bool { return condition(first, v1.VirtualMachineInstanceReady).Type != "" })
	}
	w.awaitPhase(g, v1.Scheduling)
	s.lift()
	w.awaitPhase(g, v1.Scheduled)
	tried := 0
	for _, a := range w.audit() {
		if a.What() == "create pods" && a.ObjectRef.Name == template.LauncherName(g) {
			tried++
		}
	}
	if tried != 1 {
		w.t.Errorf("the Pod was tried %d times, want 1", tried)
	}
	w.onePodEach(2)
}

// forgotten deletes a Pod without an event: the controller only gets a list without it.
func forgotten(w *world) {
	s := newSluice("pods")
	w.start(setup{wrap: s.wrap, edit: (*vmictrl.Reconciler).NeverRetry})
	g := w.running("guest")
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	s.shut()
	pod := w.awaitPods(1)[0]
	w.delete(&pod, noGrace)
	w.awaitGone(&pod)
	s.lose()
	w.awaitPhase(g, v1.Failed)
}

// overtaken migrates a VMI to a Pod that the controller's cache does not show. If it trusted
// its cache it would fail the VMI, and its node would end the domain.
func overtaken(w *world) {
	s := newSluice("pods")
	w.start(setup{wrap: s.wrap})
	g := w.running("guest")
	source := w.awaitPods(1)[0]
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	s.shut()

	other := map[string]string{"sim-0": "sim-1", "sim-1": "sim-0"}[source.Spec.NodeName]
	target := w.podOn(other, g, source)
	w.change(g, func(g *v1.VirtualMachineInstance) {
		g.Status.NodeName, g.Labels[v1.NodeNameLabel] = other, other
		g.Status.Conditions = nil
		if err := handoff.Put(g, handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: other}); err != nil {
			w.t.Fatal(err)
		}
	})
	w.await(g, "a pass", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Type != "" })
	if _, seen := g.Status.ActivePods[target.UID]; g.Status.Phase != v1.Running || !seen {
		w.t.Errorf("phase %s, activePods %v; want Running in %s", g.Status.Phase, g.Status.ActivePods, target.UID)
	}
	w.delete(&source, client.GracePeriodSeconds(0))
	s.lift()
	w.await(g, "the Pod of before to be forgotten", func() bool { return len(g.Status.ActivePods) == 1 })
	if g.Status.Phase != v1.Running {
		w.t.Errorf("phase %s, want Running", g.Status.Phase)
	}
}

// outdated triggers a write of an object whose last write by the controller its cache does not
// show.
func outdated(w *world) {
	s := newSluice("virtualmachineinstances")
	w.start(setup{wrap: s.wrap})
	g := w.running("guest")
	says := func(reason string) func() bool {
		return func() bool { return condition(g, v1.VirtualMachineInstanceReady).Reason == reason }
	}
	pod := w.awaitPods(1)[0]
	say := func(reason string) {
		w.t.Helper()
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":%q}]}}`, reason)
		if err := w.Status().Patch(w.t.Context(), &pod, client.RawPatch("application/strategic-merge-patch+json", []byte(patch))); err != nil {
			w.t.Fatal(err)
		}
	}
	say("open")
	w.await(g, "the Pod's word", says("open"))
	before := w.writes(true)
	s.shut()
	say("one")
	w.await(g, "the Pod's word", says("one"))
	say("two")
	s.lift()
	w.await(g, "the Pod's last word", says("two"))
	if diff := cmp.Diff(before, w.writes(true)); diff != "" {
		w.t.Errorf("writes that could not but be refused (-before +after):\n%s", diff)
	}
}

// late runs a function between the read of a VMI and its result.
type late struct {
	client.Client
	then atomic.Pointer[func()]
}

func (l *late) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := l.Client.Get(ctx, key, o, opts...)
	if _, guest := o.(*v1.VirtualMachineInstance); guest {
		if then := l.then.Swap(nil); then != nil {
			(*then)()
		}
	}
	return err
}

// outdatedBetween lets the cache catch up after the controller has read the old VMI, and before
// it checks whether its own writes are observed.
func outdatedBetween(w *world) {
	s := newSluice("virtualmachineinstances")
	reader := &late{}
	w.start(setup{wrap: s.wrap, edit: func(r *vmictrl.Reconciler) {
		reader.Client = r.Client
		r.Client = reader
	}})
	g := w.running("guest")
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	pod := w.awaitPods(1)[0]
	says := func(reason string) func() bool {
		return func() bool { return condition(g, v1.VirtualMachineInstanceReady).Reason == reason }
	}
	before := w.writes(true)
	s.shut()
	w.podStatus(&pod, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"one"}]}}`)
	w.await(g, "the Pod's word", says("one"))
	key := client.ObjectKeyFromObject(g)
	catchUp := func() {
		s.lift()
		err := rigtest.Poll(w.t.Context(), patience, func(ctx context.Context) (bool, error) {
			seen := &v1.VirtualMachineInstance{}
			err := reader.Client.Get(ctx, key, seen)
			return condition(seen, v1.VirtualMachineInstanceReady).Reason == "one", err
		})
		if err != nil {
			w.t.Errorf("the cache has not caught up: %v", err)
		}
	}
	reader.then.Store(&catchUp)
	w.podStatus(&pod, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"two"}]}}`)
	w.await(g, "the Pod's last word", says("two"))
	if diff := cmp.Diff(before, w.writes(true)); diff != "" {
		w.t.Errorf("writes that could not but be refused (-before +after):\n%s", diff)
	}
}

// storm starts a VMI under concurrent writes.
func storm(w *world) {
	w.start(setup{})
	g := w.guest("guest")
	ctx, calm := context.WithCancel(w.t.Context())
	written := make(chan int)
	name := g.Name
	go func() {
		for n := 0; ; n++ {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.test/storm":"%d"}}}`, n)
			o := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
			if w.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(patch))) != nil {
				written <- n
				return
			}
		}
	}()
	w.awaitPhase(g, v1.Scheduled)
	calm()
	w.t.Logf("%d writes of somebody else; lost races: %v", <-written, w.writes(true))
	if g.Annotations["example.test/storm"] == "" || w.lease(g).Epoch != 1 {
		w.t.Errorf("annotations %v", g.Annotations)
	}
	w.onePodEach(1)
}
