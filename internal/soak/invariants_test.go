// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/memapi"
)

// What is a storm: more writes of one object, or events about one, within stormWithin.
const (
	stormWithin = time.Minute
	stormWrites = 60
	stormEvents = 20
	// stormKept is the number of printed writes of storms.
	stormKept = 20
)

// invariants are what must hold after every write. The writes come one after the other.
type invariants struct {
	w *World
	// launchers are the Pods of each guest in which it may start.
	launchers map[types.UID]map[string]bool
	writes    *Storms
	events    *Storms
	// byVerb counts the writes of the daemons by kind and verb.
	byVerb map[string]int

	// stormy are some of the writes of storms.
	stormy []string
	// history is what was last written of each guest, its Pods and its migrations.
	history map[string][]string
}

// historyKept is how much of a guest's history is kept.
const historyKept = 40

// remember keeps what a write has changed that says where a guest is.
func (i *invariants) remember(c memapi.Change) {
	guest, is, was := c.Name.Name, aspect(c.Kind, c.Is), aspect(c.Kind, c.Was)
	if is == was {
		return
	}
	o := c.Is
	if o == nil {
		o = c.Was
	}
	switch c.Kind {
	case podKind:
		guest = (&unstructured.Unstructured{Object: o}).GetAnnotations()[v1.DomainAnnotation]
	case moveKind:
		guest, _, _ = unstructured.NestedString(o, "spec", "vmiName")
	}
	line := fmt.Sprintf("%s %s by %s of %s %s: %s", time.Since(i.w.begun).Round(time.Millisecond), c.Verb, c.By, c.Kind.Kind, c.Name.Name, is)
	all := append(i.history[guest], line)
	if len(all) > historyKept {
		all = all[1:]
	}
	i.history[guest] = all
}

// aspect is the state of an object in a history.
func aspect(kind schema.GroupKind, o map[string]any) string {
	if o == nil {
		return "gone"
	}
	u := unstructured.Unstructured{Object: o}
	text, _, _ := unstructured.NestedString(o, "status", "phase")
	if u.GetDeletionTimestamp() != nil {
		text += ", to be deleted"
	}
	switch kind {
	case podKind:
		at, _, _ := unstructured.NestedString(o, "spec", "nodeName")
		return text + " @" + at
	case guestKind:
		return text + " " + leaseText(o)
	}
	return text
}

func (i *invariants) init(w *World) {
	*i = invariants{
		w: w, launchers: map[types.UID]map[string]bool{}, writes: NewStorms(stormWithin, stormWrites), events: NewStorms(stormWithin, stormEvents),
		byVerb:  map[string]int{},
		history: map[string][]string{},
	}
}

// wrote hears of every write.
func (w *World) wrote(c memapi.Change) {
	w.busy.Store(true)
	i := &w.watch
	i.count(c)
	var err error
	switch c.Kind {
	case podKind:
		err = i.pod(c)
	case guestKind:
		err = i.guest(c)
	case moveKind:
	default:
		return
	}
	i.remember(c)
	if err != nil {
		w.note("%s by %s of %s: %v", c.Verb, c.By, c.Name, err)
		w.fail(err)
	}
}

// count counts what the daemons write.
func (i *invariants) count(c memapi.Change) {
	if c.By == userName || c.By == clusterName {
		return
	}
	now := time.Now()
	i.byVerb[c.Kind.Kind+" "+c.Verb]++
	if c.Kind != eventKind {
		if i.writes.Wrote(c.Kind.Kind+" "+c.Name.String(), now) && len(i.stormy) < stormKept {
			i.stormy = append(i.stormy, fmt.Sprintf("%s %s by %s of %s: %s", now.Sub(i.w.begun), c.Verb, c.By, c.Name, differences(c.Was, c.Is)))
		}
		return
	}
	if c.Is != nil {
		name, _, _ := unstructured.NestedString(c.Is, "regarding", "name")
		kind, _, _ := unstructured.NestedString(c.Is, "regarding", "kind")
		i.events.Wrote("events about "+kind+" "+name, now)
	}
}

// differences returns the changes of a write, field by field.
func differences(was, is any) string {
	var out []string
	var walk func(path string, was, is any)
	walk = func(path string, was, is any) {
		a, isMap := was.(map[string]any)
		b, areMaps := is.(map[string]any)
		if !isMap || !areMaps {
			if !reflect.DeepEqual(was, is) {
				out = append(out, fmt.Sprintf("%s: %.300v -> %.300v", path, was, is))
			}
			return
		}
		for k := range a {
			walk(path+"."+k, a[k], b[k])
		}
		for k := range b {
			if _, both := a[k]; !both {
				walk(path+"."+k, nil, b[k])
			}
		}
	}
	walk("", was, is)
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// pod checks that a guest has one Pod at most in which it may start.
func (i *invariants) pod(c memapi.Change) error {
	o := c.Is
	if o == nil {
		o = c.Was
	}
	u := unstructured.Unstructured{Object: o}
	labels := u.GetLabels()
	if labels[v1.AppLabel] != "virt-launcher" || labels[v1.MigrationJobLabel] != "" || u.GetAnnotations()[v1.EphemeralProvisioningObject] != "" {
		return nil
	}
	phase, _, _ := unstructured.NestedString(o, "status", "phase")
	owner := types.UID(labels[v1.CreatedByLabel])
	if c.Is == nil || u.GetDeletionTimestamp() != nil || phase == "Failed" || phase == "Succeeded" {
		delete(i.launchers[owner], u.GetName())
		if len(i.launchers[owner]) == 0 {
			delete(i.launchers, owner)
		}
		return nil
	}
	if i.launchers[owner] == nil {
		i.launchers[owner] = map[string]bool{}
	}
	i.launchers[owner][u.GetName()] = true
	if n := len(i.launchers[owner]); n > 1 {
		return fmt.Errorf("guest %s has %d launcher Pods: %v", owner, n, i.launchers[owner])
	}
	return nil
}

// guest checks what a guest's object says, and that it runs once at most.
func (i *invariants) guest(c memapi.Change) error {
	if err := i.once(c.Name); err != nil {
		return err
	}
	if c.Is == nil || c.Was == nil || leaseText(c.Was) == leaseText(c.Is) {
		return nil
	}
	was, err := leaseOf(c.Was)
	if err != nil {
		return err
	}
	is, err := leaseOf(c.Is)
	if err != nil {
		return err
	}
	if is.Epoch < was.Epoch {
		return fmt.Errorf("the lease went back from %+v to %+v", was, is)
	}
	if was.State == handoff.Released && is.State != handoff.Released {
		return fmt.Errorf("a guest that was released is not any more: %+v", is)
	}
	return nil
}

func leaseText(o map[string]any) string {
	return (&unstructured.Unstructured{Object: o}).GetAnnotations()[handoff.Annotation]
}

func leaseOf(o map[string]any) (handoff.Lease, error) {
	g := &v1.VirtualMachineInstance{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, g); err != nil {
		return handoff.Lease{}, err
	}
	return handoff.Of(g)
}

// once checks that at most one node runs the guest. The nodes are asked one after the other, and a guest that moves changes
// nodes in one moment, which may be between two answers: only who runs it before and after another does runs it beside that one.
func (i *invariants) once(guest types.NamespacedName) error {
	name := domain.Name(guest.Namespace, guest.Name)
	on := i.runs(name)
	if len(on) > 1 {
		again := i.runs(name)
		on = slices.DeleteFunc(on, func(n string) bool { return !slices.Contains(again, n) })
	}
	if len(on) > 1 {
		return fmt.Errorf("two owners: %s runs on %s; before that:\n  %s", guest, strings.Join(on, " and "), strings.Join(i.history[guest.Name], "\n  "))
	}
	return nil
}

// runs are the nodes that say that they run a domain.
func (i *invariants) runs(name string) (on []string) {
	for _, n := range i.w.nodes {
		all, err := n.hypervisor.List(context.Background())
		if err != nil {
			continue // it is disconnected
		}
		for _, st := range all {
			if st.Name == name && st.Status == domain.StatusRunning {
				on = append(on, n.name)
			}
		}
	}
	return on
}
