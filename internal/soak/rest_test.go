// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// sight is all there is, when no client writes.
type sight struct {
	guests []v1.VirtualMachineInstance
	moves  []v1.VirtualMachineInstanceMigration
	pods   []corev1.Pod
	// domains are those of each node that live, and files the guests that have files there.
	domains map[string][]domain.State
	files   map[string]map[types.UID]types.NamespacedName
	// outstanding are writes that no cache shows, slots those that migrations hold.
	outstanding, slots float64
}

// gauges are the sums of the controller's gauges by name.
type gauges map[string]float64

// Gauges of the controller that have to be zero at rest.
const (
	gaugeOutstanding = "virtloom_expectations_outstanding"
	gaugeSlots       = "virtloom_migration_slots_used"
)

// lookAt looks at everything there is.
func lookAt(ctx context.Context, c client.Client, nodes []*node, g gauges) (*sight, error) {
	s := &sight{domains: map[string][]domain.State{}, files: map[string]map[types.UID]types.NamespacedName{}}
	s.outstanding, s.slots = g[gaugeOutstanding], g[gaugeSlots]
	var guests v1.VirtualMachineInstanceList
	var moves v1.VirtualMachineInstanceMigrationList
	var pods corev1.PodList
	if err := errors.Join(c.List(ctx, &guests), c.List(ctx, &moves), c.List(ctx, &pods)); err != nil {
		return nil, err
	}
	s.guests, s.moves, s.pods = guests.Items, moves.Items, pods.Items
	for _, n := range nodes {
		all, err := n.hypervisor.List(ctx)
		if err != nil {
			return nil, err
		}
		s.domains[n.name] = all
		if s.files[n.name], err = n.workspace().Owners(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (w *World) look(ctx context.Context) (*sight, error) {
	families, err := w.ctl.registry.Gather()
	if err != nil {
		return nil, err
	}
	g := gauges{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			g[f.GetName()] += m.GetGauge().GetValue()
		}
	}
	return lookAt(ctx, w.admin, w.nodes, g)
}

// wrong says what must not be so when everything has come to rest.
func (s *sight) wrong() []string {
	wrong := s.wrongObjects()
	known, byName := map[types.UID]bool{}, map[string]bool{}
	for i := range s.guests {
		g := &s.guests[i]
		known[g.UID], byName[domain.Name(g.Namespace, g.Name)] = true, true
	}
	wrong = append(wrong, s.leftOf(known)...)
	for n, all := range s.domains {
		for _, st := range all {
			if !byName[st.Name] {
				wrong = append(wrong, fmt.Sprintf("domain %s is left on %s", st.Name, n))
			}
		}
	}
	if s.outstanding != 0 {
		wrong = append(wrong, fmt.Sprintf("%g expectations are outstanding", s.outstanding))
	}
	if s.slots != 0 && len(wrong) == 0 {
		wrong = append(wrong, fmt.Sprintf("%g slots are taken and no migration is under way", s.slots))
	}
	return wrong
}

// wrongObjects says what is wrong with guests and migrations.
func (s *sight) wrongObjects() []string {
	var wrong []string
	for i := range s.guests {
		for _, what := range s.wrongWith(&s.guests[i]) {
			wrong = append(wrong, fmt.Sprintf("guest %s: %s", s.guests[i].Name, what))
		}
	}
	for i := range s.moves {
		if m := &s.moves[i]; !m.IsFinal() || m.DeletionTimestamp != nil {
			wrong = append(wrong, fmt.Sprintf("migration %s of %s is %q, conditions %+v", m.Name, m.Spec.VMIName, m.Status.Phase, m.Status.Conditions))
		}
	}
	return wrong
}

// leftOf says what is left of guests that are not known any more.
func (s *sight) leftOf(known map[types.UID]bool) []string {
	var wrong []string
	for i := range s.pods {
		p := &s.pods[i]
		if uid := types.UID(p.Labels[v1.CreatedByLabel]); uid != "" && !known[uid] {
			wrong = append(wrong, fmt.Sprintf("Pod %s is left of guest %s", p.Name, uid))
		}
		if p.DeletionTimestamp != nil {
			wrong = append(wrong, fmt.Sprintf("Pod %s has yet to go", p.Name))
		}
	}
	for n, all := range s.files {
		for uid, name := range all {
			if !known[uid] {
				wrong = append(wrong, fmt.Sprintf("files of %s are left on %s", name, n))
			}
		}
	}
	return wrong
}

// leftovers says what is left where nothing is to be.
func (s *sight) leftovers() []string {
	wrong := s.wrong()
	for i := range s.guests {
		wrong = append(wrong, "guest "+s.guests[i].Name)
	}
	for i := range s.moves {
		wrong = append(wrong, "migration "+s.moves[i].Name)
	}
	return wrong
}

// wrongWith says what is wrong with a guest at rest: it runs, once, where its lease says, in one Pod there; or it has
// ended and nothing of it is left.
func (s *sight) wrongWith(g *v1.VirtualMachineInstance) []string {
	lease, err := handoff.Of(g)
	if err != nil {
		return []string{err.Error()}
	}
	at := map[string]domain.Status{}
	var on []string
	for n, all := range s.domains {
		for i := range all {
			if all[i].Name == domain.Name(g.Namespace, g.Name) {
				at[n], on = all[i].Status, append(on, n+": "+string(all[i].Status))
			}
		}
	}
	pods := s.launchers(g)
	says := fmt.Sprintf("phase %s, lease %s of %q, domains %v, Pods %v", g.Status.Phase, lease.State, lease.Holder, on, pods)
	switch {
	case g.DeletionTimestamp != nil:
		return []string{"it is still there: " + says}
	case g.IsFinal():
		if lease.State != handoff.Released || len(on) > 0 {
			return []string{"it has ended, and something is left: " + says}
		}
		return nil
	case g.Status.Phase != v1.Running, lease.State != handoff.Owned, len(on) != 1, at[lease.Holder] != domain.StatusRunning:
		return []string{"it neither runs nor has ended: " + says}
	case len(pods) != 1 || !strings.HasSuffix(pods[0], "@"+lease.Holder+" Running"):
		return []string{"its Pods are not one: " + says}
	}
	return nil
}

// launchers are the Pods that the guest may live in, with node and phase.
func (s *sight) launchers(g *v1.VirtualMachineInstance) []string {
	var out []string
	for i := range s.pods {
		p := &s.pods[i]
		if metav1.IsControlledBy(p, g) && p.Labels[v1.AppLabel] == "virt-launcher" {
			out = append(out, fmt.Sprintf("%s@%s %s", p.Name, p.Spec.NodeName, p.Status.Phase))
		}
	}
	return out
}

const (
	// restWithin is how long everything may take to come to rest, restLook how often that is looked at.
	restWithin = 40 * time.Minute
	restLook   = 15 * time.Second
	// idleFor is for how long the requests of everybody at rest are counted.
	idleFor = 10 * time.Minute
)

// until waits until nothing is wrong.
func (w *World) until(ctx context.Context, what string, wrong func(*sight) []string) error {
	var last []string
	for begun := time.Now(); time.Since(begun) < restWithin; time.Sleep(restLook) {
		select {
		case err := <-w.failed:
			return err
		default:
		}
		if err := w.revive(); err != nil {
			return err
		}
		s, err := w.look(ctx)
		if err != nil {
			return err
		}
		if last = wrong(s); len(last) == 0 {
			return nil
		}
	}
	slices.Sort(last)
	return fmt.Errorf("after %s without faults %s:\n  %s%s", restWithin, what, strings.Join(last, "\n  "), w.historyOf(last))
}

// historyOf returns the history of VMIs with violations.
func (w *World) historyOf(wrong []string) string {
	var out strings.Builder
	for _, line := range wrong {
		for word := range strings.FieldsSeq(line) {
			if all := w.watch.history[strings.TrimSuffix(word, ":")]; len(all) > 0 {
				fmt.Fprintf(&out, "\nhistory of %s\n  %s", word, strings.Join(all, "\n  "))
				break
			}
		}
	}
	return out.String()
}

// Values that are sampled.
const (
	valueGoroutines = "goroutines"
	valueHeap       = "heap KiB"
	valueWatches    = "watches"
	valueObjects    = "objects"
	valueRequests   = "requests an hour at rest"
	valueWrites     = "writes an operation"
	valueEvents     = "events an operation"
)

// sample measures, with nothing left but what was there at first.
func (w *World) sample(requests float64, writes, events, ops int) Sample {
	w.forget()
	clear(w.watch.history)
	w.api.Compact()
	w.watch.writes.Forget(time.Now())
	w.watch.events.Forget(time.Now())
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	s := Sample{At: time.Since(w.begun), Operations: w.ops, Values: map[string]float64{
		valueGoroutines: float64(runtime.NumGoroutine()), valueHeap: float64(m.HeapAlloc) / 1024, valueWatches: float64(w.api.Watches()),
		valueObjects: float64(w.api.Count()), valueRequests: requests,
	}}
	if ops > 0 {
		s.Values[valueWrites], s.Values[valueEvents] = float64(writes)/float64(ops), float64(events)/float64(ops)
	}
	return s
}

// idle counts the requests that are made while nothing is to be done, in an hour.
func (w *World) idle() float64 {
	before := w.api.Requests()
	time.Sleep(idleFor)
	return float64(w.api.Requests()-before) * float64(time.Hour) / float64(idleFor)
}

// empty deletes all guests and migrations and waits until nothing of them is left.
func (w *World) empty(ctx context.Context) error {
	if err := w.user.DeleteAll(ctx); err != nil {
		return err
	}
	err := w.until(ctx, "something is left of guests that were deleted", (*sight).leftovers)
	return errors.Join(err, w.rest.DeleteAllEvents(ctx))
}

// DeleteAllEvents drops all events, so that samples can be compared.
func (c *cluster) DeleteAllEvents(ctx context.Context) error {
	var all client.ObjectList = newEvents()
	if err := c.List(ctx, all); err != nil {
		return err
	}
	return eachItem(all, func(o client.Object) error { return settled(c.Delete(ctx, o)) })
}
