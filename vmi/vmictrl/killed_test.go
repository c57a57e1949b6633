// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
)

// mostTries is how often a process is started to be killed at a given write: two processes may write in different
// orders.
const mostTries = 5

// mostTrips is the number of VMIs per successor: it watches a namespace for each.
const mostTrips = 10

// path is a sequence of states of a VMI in which the controller is killed at each of its writes.
type path struct {
	// begin creates a VMI, at the beginning of the path.
	begin func(*world) *v1.VirtualMachineInstance
	// arrived returns what is missing to the end of the path, or "".
	arrived func(*world, *v1.VirtualMachineInstance) string
	// reported returns which events are missing; a killed controller may never emit them.
	reported func(*world, *v1.VirtualMachineInstance) string
	// check checks the final state.
	check func(*world, *v1.VirtualMachineInstance)
	// pods is how many Pods the VMI has had by then.
	pods int
}

// trip is one VMI on the path, in a namespace of its own.
type trip struct {
	*world
	guest   *v1.VirtualMachineInstance
	history *history
	process *process
	// requests are all requests in the namespace until the end of the path.
	requests []rig.Request
}

// killedAtEachWrite runs the controller in processes of its own. The first completes the path and reports its
// writes. Then, for each of these writes, one process is killed by signal 9 right before it is sent, and one when the
// server has answered and the process has not read it. One successor brings all VMIs to the end of the path. The
// first trip is returned.
func killedAtEachWrite(w *world, p path) *trip {
	w.t.Helper()
	calm := w.trip(w.t, p, death{})
	calm.requests = w.auditAll()[calm.ns]
	want := calm.effects()
	calm.check(p)

	tried := map[death]int{}
	var trips []*trip
	next := deaths(calm.process.writes)
	w.t.Logf("%d writes: %q", len(calm.process.writes), calm.process.writes)
	for len(next) > 0 {
		made := make([]*trip, len(next))
		w.t.Run("killed at", func(t *testing.T) {
			for i, d := range next {
				tried[d]++
				t.Run(d.String(), func(t *testing.T) {
					t.Parallel()
					made[i] = w.trip(t, p, d)
				})
			}
		})
		trips = append(trips, slices.DeleteFunc(made, func(made *trip) bool { return made == nil })...)
		next = w.survived(tried, trips)
	}
	if w.t.Failed() {
		return calm
	}
	for some := range slices.Chunk(trips, mostTrips) {
		w.succeed(p, some)
	}
	requests := w.auditAll()
	for _, made := range trips {
		w.t.Run("successor of one killed "+made.process.death.String(), func(t *testing.T) {
			made.t, made.requests = t, requests[made.ns]
			made.check(p)
			made.compare(want)
		})
	}
	return calm
}

// deaths returns the orders to exit at each of the writes.
func deaths(writes []string) []death {
	var all []death
	for _, write := range writes {
		all = append(all, death{Write: write}, death{Write: write, Answered: true})
	}
	return all
}

// survived returns the deaths not tried yet, among those at every write that any process made.
func (w *world) survived(tried map[death]int, trips []*trip) []death {
	died, all := map[death]bool{}, map[death]bool{}
	for _, made := range trips {
		d, killed := made.process.death, made.process.killed()
		died[d] = killed || died[d]
		if !killed && slices.Contains(made.process.writes, d.Write) {
			w.t.Errorf("a process has survived its death %s", d)
		}
		for _, d := range deaths(made.process.writes) {
			all[d] = true
		}
	}
	for d := range tried {
		all[d] = true
	}
	var next []death
	for d := range all {
		switch {
		case died[d]:
		case tried[d] < mostTries:
			next = append(next, d)
		case strings.HasPrefix(d.Write, "PATCH virtualmachineinstances "):
			w.t.Logf("no process of %d made %s: two patches may become one", mostTries, d.Write)
		default:
			w.t.Errorf("no process of %d came to its death %s", mostTries, d)
		}
	}
	return next
}

// trip starts a VMI on the path, with a controller that follows the order, and returns when either has ended.
func (w *world) trip(t *testing.T, p path, d death) *trip {
	t.Helper()
	made := &trip{world: w.world(t)}
	made.history = made.record(w.t.Context())
	made.guest = p.begin(made.world)
	made.process = w.spawn(t, order{Namespaces: []string{made.ns}, Death: d})
	made.eventually(func() string {
		if made.process.over() {
			return ""
		}
		if missing := p.arrived(made.world, made.guest); missing != "" {
			return missing
		}
		return p.reported(made.world, made.guest)
	})
	made.process.stop()
	return made
}

// succeed lets one controller bring all VMIs to the end of the path.
func (w *world) succeed(p path, trips []*trip) {
	w.t.Helper()
	var o order
	for _, made := range trips {
		o.Namespaces = append(o.Namespaces, made.ns)
	}
	successor := w.spawn(w.t, o)
	for _, made := range trips {
		made.t = w.t
		w.eventually(func() string {
			if missing := p.arrived(made.world, made.guest); missing != "" {
				return fmt.Sprintf("%s of the guest whose controller was killed %s", missing, made.process.death)
			}
			return ""
		})
	}
	successor.stop()
}

// effects counts the effective writes of controllers in the namespace. Events are left to check, as one may get lost, and
// so are patches of the VMI: two may become one.
func (m *trip) effects() map[string]int {
	all := written(m.requests, rig.Request.Accepted)
	delete(all, "create events")
	delete(all, "patch virtualmachineinstances")
	return all
}

// compare fails unless two controllers had the effects of one. A request in flight when the first was killed may
// have had an effect without an answer.
func (m *trip) compare(want map[string]int) {
	m.t.Helper()
	did := m.effects()
	for what, n := range written(m.requests, cutOff) {
		if _, wanted := want[what]; wanted {
			did[what] += min(n, want[what]-did[what])
		}
	}
	if diff := cmp.Diff(want, did); diff != "" {
		m.t.Errorf("what both controllers did, against what one does (-want +got):\n%s", diff)
	}
}

func cutOff(q rig.Request) bool { return q.ResponseStatus.Code >= 500 }

func refused(q rig.Request) bool { return !q.Accepted() && !cutOff(q) }

// check checks the invariants of every path.
func (m *trip) check(p path) {
	m.t.Helper()
	onePodEach(m.t, m.requests, p.pods)
	m.history.onwards(m.world, m.guest)
	if vain := written(m.requests, refused); len(vain) > 0 {
		m.t.Errorf("refused were %v", vain)
	}
	var events corev1.EventList
	if err := m.List(m.t.Context(), &events, client.InNamespace(m.ns)); err != nil {
		m.t.Fatal(err)
	}
	reported := map[string]bool{}
	for _, e := range events.Items {
		if e.ReportingController != "virtualmachine-controller" {
			continue
		}
		if reported[e.Reason+e.Message] || e.Series != nil || e.Count > 1 {
			m.t.Errorf("event %s was emitted more than once: %s", e.Reason, e.Message)
		}
		reported[e.Reason+e.Message] = true
	}
	p.check(m.world, m.guest)
}

func killedStarting(w *world) {
	calm := killedAtEachWrite(w, path{
		pods:     1,
		begin:    func(w *world) *v1.VirtualMachineInstance { return w.guest("guest") },
		arrived:  offered,
		reported: func(w *world, _ *v1.VirtualMachineInstance) string { return w.missingEvent("SuccessfulCreate") },
		check: func(w *world, g *v1.VirtualMachineInstance) {
			w.awaitPods(1)
			if l := w.lease(g); l.State != handoff.Offered || l.Epoch != 1 {
				w.t.Errorf("the lease is %+v", l)
			}
		},
	})
	made := 0
	for _, n := range written(calm.requests, func(rig.Request) bool { return true }) {
		made += n
	}
	if made != len(calm.process.writes) || made == 0 {
		w.t.Errorf("the server was written to %d times, of which the process knew %q", made, calm.process.writes)
	}
}

// offered returns what is missing until the VMI is offered to its node, or "".
func offered(w *world, g *v1.VirtualMachineInstance) string {
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
		return err.Error()
	}
	l, err := handoff.Of(g)
	if err != nil || g.Status.Phase != v1.Scheduled || l.State != handoff.Offered {
		return fmt.Sprintf("the offer (phase %s, conditions %+v, lease %+v, %v)", g.Status.Phase, g.Status.Conditions, l, err)
	}
	return w.ungated()
}

// killedDeleting starts with a deleted VMI in a final phase that no controller has observed yet.
func killedDeleting(w *world) {
	killedAtEachWrite(w, path{
		pods: 1,
		begin: func(w *world) *v1.VirtualMachineInstance {
			stop := w.start(setup{})
			g := w.running("guest")
			w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
			w.eventually(func() string { return w.ungated() + w.missingEvent("SuccessfulCreate") })
			stop()
			w.delete(g)
			w.node(g, handoff.Release, v1.Succeeded)
			return g
		},
		arrived: func(w *world, _ *v1.VirtualMachineInstance) string {
			var found v1.VirtualMachineInstanceList
			if err := w.List(w.t.Context(), &found, client.InNamespace(w.ns)); err != nil || len(found.Items)+len(w.pods()) > 0 {
				return fmt.Sprintf("the end (%d guests, %d Pods, %v)", len(found.Items), len(w.pods()), err)
			}
			return ""
		},
		reported: func(w *world, _ *v1.VirtualMachineInstance) string { return w.missingEvent("SuccessfulDelete") },
		check:    func(w *world, _ *v1.VirtualMachineInstance) { w.awaitPods(0) },
	})
}

// ungated returns a message while the readiness gate of the launcher Pod is not written.
func (w *world) ungated() string {
	for _, pod := range w.pods() {
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.VirtualMachineUnpaused {
				return ""
			}
		}
	}
	return "the readiness gate"
}

// missingEvent returns a message if there is no event of the reason with all of the words.
func (w *world) missingEvent(reason string, words ...string) string {
	var events corev1.EventList
	if err := w.List(w.t.Context(), &events, client.InNamespace(w.ns)); err != nil {
		return err.Error()
	}
	if slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == reason && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e.Message, word) })
	}) {
		return ""
	}
	return "event " + reason + " " + strings.Join(words, " ")
}
