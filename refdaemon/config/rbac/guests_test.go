// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
)

// guestRequest is a write of an agent to a guest.
type guestRequest struct {
	// by is who writes; nodeA's agent if empty.
	by string
	// was makes the guest what it is before, from one that nodeA runs.
	was func(*testing.T, *v1.VirtualMachineInstance)
	// edit is the write.
	edit func(*testing.T, *v1.VirtualMachineInstance)
	// denied is why it is denied; allowed if empty.
	denied string
}

type edit = func(*testing.T, *v1.VirtualMachineInstance)

// step changes the lease, by the rules of the handoff protocol.
func step(events ...handoff.Event) edit {
	return func(t *testing.T, vmi *v1.VirtualMachineInstance) {
		t.Helper()
		for _, e := range events {
			l, err := handoff.Of(vmi)
			must(t, err)
			e.Epoch = l.Epoch
			l, _, err = handoff.Step(l, e, time.Now())
			must(t, err)
			must(t, handoff.Put(vmi, l))
		}
	}
}

// then does one edit after the other.
func then(edits ...edit) edit {
	return func(t *testing.T, vmi *v1.VirtualMachineInstance) {
		t.Helper()
		for _, e := range edits {
			e(t, vmi)
		}
	}
}

// plain is an edit that needs no test.
func plain(f func(*v1.VirtualMachineInstance)) edit {
	return func(_ *testing.T, vmi *v1.VirtualMachineInstance) { f(vmi) }
}

// lease replaces a part of the stored lease, as a client would that does not keep to the rules.
func lease(old, replacement string) edit {
	return func(t *testing.T, vmi *v1.VirtualMachineInstance) {
		t.Helper()
		was := vmi.Annotations[handoff.Annotation]
		if !strings.Contains(was, old) {
			t.Fatalf("the lease %s has no %s", was, old)
		}
		vmi.Annotations[handoff.Annotation] = strings.Replace(was, old, replacement, 1)
	}
}

func label(key, value string) edit {
	return plain(func(vmi *v1.VirtualMachineInstance) { vmi.Labels[key] = value })
}

func phase(p v1.VirtualMachineInstancePhase) edit {
	return plain(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = p })
}

var (
	offered   = then(unclaimed, step(handoff.Event{Kind: handoff.Offer, Node: nodeA}), phase(v1.Scheduled))
	preparing = then(step(handoff.Event{Kind: handoff.Prepare, Node: nodeB, Tag: "m"}), plain(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: nodeA, TargetNode: nodeB}
	}))
	ready   = step(handoff.Event{Kind: handoff.Ready, Node: nodeB})
	begin   = step(handoff.Event{Kind: handoff.Begin, Node: nodeA})
	moving  = then(preparing, ready, begin)
	stalled = then(moving, step(handoff.Event{Kind: handoff.Stall, Node: nodeA}))
	fenced  = then(moving, step(handoff.Event{Kind: handoff.Suspect, Node: nodeA},
		handoff.Event{Kind: handoff.Fence, Node: nodeA, Evidence: &handoff.Evidence{Kind: handoff.FenceConfirmed}}))
	taken  = step(handoff.Event{Kind: handoff.TakeOver, Node: nodeB}, handoff.Event{Kind: handoff.Finalize, Node: nodeB})
	report = plain(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{Name: "default", IP: "192.0.2.7"}}
	})
	// stock is a guest as a stock controller leaves it.
	stock = plain(func(vmi *v1.VirtualMachineInstance) { delete(vmi.Annotations, handoff.Annotation) })
)

// unclaimed is a VMI that no node was given.
func unclaimed(t *testing.T, vmi *v1.VirtualMachineInstance) {
	t.Helper()
	vmi.Status.Phase = v1.Pending
	must(t, handoff.Put(vmi, handoff.Lease{}))
}

// newGuest is a guest that nodeA runs.
func newGuest(t *testing.T, name string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
		Labels:      map[string]string{"app": "web", v1.OutdatedLauncherImageLabel: ""},
		Annotations: map[string]string{"example.com/note": "mine", v1.EvictionSourceAnnotation: "somebody"},
	}}
	step(handoff.Event{Kind: handoff.Offer, Node: nodeA}, handoff.Event{Kind: handoff.Accept, Node: nodeA},
		handoff.Event{Kind: handoff.Started, Node: nodeA})(t, vmi)
	vmi.Status.Phase = v1.Running
	return vmi
}

// allowedGuestWrites are the writes that agents make: the events of the handoff whose senders are
// nodes, and the status.
func allowedGuestWrites() map[string]guestRequest {
	return map[string]guestRequest{
		"the holder reports":                   {edit: report},
		"the holder's Pod reports":             {by: podOnA, edit: report},
		"the holder accepts":                   {was: offered, edit: step(handoff.Event{Kind: handoff.Accept, Node: nodeA})},
		"the guest has started":                {was: then(offered, step(handoff.Event{Kind: handoff.Accept, Node: nodeA})), edit: then(step(handoff.Event{Kind: handoff.Started, Node: nodeA}), phase(v1.Running))},
		"the target is ready":                  {by: nodeB, was: preparing, edit: then(ready, plain(func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.TargetNodeAddress = "192.0.2.8" }))},
		"the holder begins to move":            {was: then(preparing, ready), edit: begin},
		"the holder takes a move back":         {was: moving, edit: step(handoff.Event{Kind: handoff.Revert, Node: nodeA, Message: `it said {"holder":"x"} <&>`})},
		"the holder has lost track":            {was: moving, edit: step(handoff.Event{Kind: handoff.Stall, Node: nodeA})},
		"the target takes over":                {by: nodeB, was: moving, edit: then(taken, phase(v1.Running), report)},
		"the target's Pod takes over":          {by: podOnB, was: moving, edit: taken},
		"the target takes over what stalled":   {by: nodeB, was: stalled, edit: taken},
		"the target declines":                  {by: nodeB, was: stalled, edit: step(handoff.Event{Kind: handoff.Decline, Node: nodeB})},
		"the target declines what is fenced":   {by: nodeB, was: fenced, edit: step(handoff.Event{Kind: handoff.Decline, Node: nodeB})},
		"the target takes over what is fenced": {by: nodeB, was: fenced, edit: taken},
		"the target ends as owner":             {by: nodeB, was: then(moving, taken), edit: then(phase(v1.Succeeded), step(handoff.Event{Kind: handoff.Release, Node: nodeB}))},
		"the holder stops":                     {edit: step(handoff.Event{Kind: handoff.Stop, Node: nodeA})},
		"the holder stops what should move":    {was: preparing, edit: step(handoff.Event{Kind: handoff.Stop, Node: nodeA})},
		"the guest has ended":                  {edit: then(phase(v1.Succeeded), step(handoff.Event{Kind: handoff.Release, Node: nodeA}))},
		"a silent holder returns": {was: step(handoff.Event{Kind: handoff.Suspect, Node: nodeA}),
			edit: step(handoff.Event{Kind: handoff.Return, Node: nodeA})},
		"the owner takes off what asked for a move": {edit: plain(func(vmi *v1.VirtualMachineInstance) {
			delete(vmi.Labels, v1.OutdatedLauncherImageLabel)
			delete(vmi.Annotations, v1.EvictionSourceAnnotation)
		})},
		"what waited for the end of a move is done": {
			was: then(label(v1.VirtualMachinePodCPULimitsLabel, "4"), label(v1.VirtualMachinePodMemoryRequestsLabel, "1Gi")),
			edit: plain(func(vmi *v1.VirtualMachineInstance) {
				delete(vmi.Labels, v1.VirtualMachinePodCPULimitsLabel)
				delete(vmi.Labels, v1.VirtualMachinePodMemoryRequestsLabel)
			}),
		},
		"stock: the holder reports": {was: stock, edit: report},
		"stock: the holder is named in the status as well": {was: then(stock, plain(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "" })),
			edit: plain(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = nodeA })},
		"stock: the holder is named in the status alone": {was: then(stock, plain(func(vmi *v1.VirtualMachineInstance) { delete(vmi.Labels, v1.NodeNameLabel) })), edit: report},
		"stock: the target takes over": {by: nodeB, was: then(moving, stock), edit: plain(func(vmi *v1.VirtualMachineInstance) {
			vmi.Labels[v1.NodeNameLabel], vmi.Status.NodeName = nodeB, nodeB
			delete(vmi.Labels, v1.MigrationTargetNodeNameLabel)
		})},
	}
}

// The reasons of denials.
const (
	notHere     = "neither on node"
	handsAway   = "cannot hand the guest to another node"
	leaseDiffer = "the lease names other nodes"
	noLabels    = "changes no labels"
	noNotes     = "changes no annotations"
)

func deniedGuestWrites() map[string]guestRequest {
	return map[string]guestRequest{
		"another node's guest":                {by: nodeB, edit: report, denied: notHere},
		"another node's guest, by a Pod":      {by: podOnB, edit: report, denied: notHere},
		"a guest that is nobody's":            {was: unclaimed, edit: report, denied: notHere},
		"takes what is nobody's":              {was: unclaimed, edit: step(handoff.Event{Kind: handoff.Offer, Node: nodeA}), denied: notHere},
		"takes another's":                     {by: nodeB, edit: label(v1.NodeNameLabel, nodeB), denied: notHere},
		"makes itself the target":             {by: nodeB, edit: preparing, denied: notHere},
		"the source after the guest has left": {was: then(moving, taken), edit: report, denied: notHere},
		"an identity that names no node":      {by: nowhere, edit: report, denied: notHere},
		"a user that names no node":           {by: ofNoNode, edit: report, denied: notHere},
		"no node, a guest that is nobody's":   {by: ofNoNode, was: unclaimed, edit: report, denied: notHere},
		"gives its guest away by label":       {edit: label(v1.NodeNameLabel, nodeB), denied: handsAway},
		"gives it away by status":             {edit: plain(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = nodeB }), denied: handsAway},
		"makes it nobody's":                   {edit: unclaimed, denied: handsAway},
		"the target gives it to a third":      {by: nodeB, was: moving, edit: label(v1.NodeNameLabel, "sim-2"), denied: handsAway},
		"the source pretends the take-over":   {was: moving, edit: taken, denied: handsAway},
		"names a target":                      {edit: preparing, denied: "only a controller names the node"},
		"names another target":                {was: preparing, edit: label(v1.MigrationTargetNodeNameLabel, "sim-2"), denied: "only a controller names the node"},
		"gives it away by the lease":          {edit: lease(`"holder":"sim-0"`, `"holder":"sim-1"`), denied: leaseDiffer},
		"a second holder in the lease":        {edit: lease(`"holder":"sim-0"`, `"holder":"sim-0","holder":"sim-1"`), denied: leaseDiffer},
		"a second holder in capitals":         {edit: lease(`"holder":"sim-0"`, `"holder":"sim-0","HOLDER" : "sim-1"`), denied: leaseDiffer},
		"a second holder in escapes":          {edit: lease(`"holder":"sim-0"`, `"holder":"sim-0","h\u006flder":"sim-1"`), denied: leaseDiffer},
		"a target in the lease alone":         {edit: lease(`"state":"Owned"`, `"state":"Moving","target":"sim-1"`), denied: leaseDiffer},
		"takes over what has not begun": {by: nodeB, was: then(preparing, ready), denied: "not on its way",
			edit: then(begin, taken)},
		"the target pretends the end": {by: nodeB, was: moving, denied: "does not name the node",
			edit: lease(`"state":"Moving","epoch":2,"holder":"sim-0","target":"sim-1",`, `"state":"Released","epoch":3,`)},
		"a lease without a holder":      {edit: lease(`"holder":"sim-0",`, ""), denied: "does not name the node"},
		"takes over by the lease alone": {by: nodeB, was: moving, edit: lease(`"holder":"sim-0"`, `"holder":"sim-1"`), denied: leaseDiffer},
		"removes the lease":             {edit: stock, denied: leaseDiffer},
		"changes the spec": {edit: plain(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Hostname = "other" }),
			denied: "does not change the spec"},
		"the target changes the spec as it takes over": {by: nodeB, was: moving, denied: "does not change the spec",
			edit: then(taken, plain(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Hostname = "other" }))},
		"the target says that it has failed": {by: nodeB, was: moving, edit: phase(v1.Failed), denied: "only the owner of a guest may report its phase"},
		"changes a label of the user's":      {edit: label("app", "other"), denied: noLabels},
		"adds a label":                       {edit: label("example.com/more", ""), denied: noLabels},
		"adds the label of an old launcher":  {was: plain(func(vmi *v1.VirtualMachineInstance) { delete(vmi.Labels, v1.OutdatedLauncherImageLabel) }), edit: label(v1.OutdatedLauncherImageLabel, ""), denied: noLabels},
		"removes a label of the user's":      {edit: plain(func(vmi *v1.VirtualMachineInstance) { delete(vmi.Labels, "app") }), denied: noLabels},
		"adds an annotation":                 {edit: plain(func(vmi *v1.VirtualMachineInstance) { vmi.Annotations["example.com/more"] = "" }), denied: noNotes},
		"changes the source of an eviction":  {edit: plain(func(vmi *v1.VirtualMachineInstance) { vmi.Annotations[v1.EvictionSourceAnnotation] = "other" }), denied: noNotes},
		"removes an annotation":              {edit: plain(func(vmi *v1.VirtualMachineInstance) { delete(vmi.Annotations, "example.com/note") }), denied: noNotes},
		"removes the finalizer":              {edit: plain(func(vmi *v1.VirtualMachineInstance) { vmi.Finalizers = nil }), denied: "neither finalizers nor owners"},
		"adds an owner": {denied: "neither finalizers nor owners", edit: plain(func(vmi *v1.VirtualMachineInstance) {
			vmi.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}}
		})},
	}
}

func (w *world) testGuests(t *testing.T) {
	requests := map[string]guestRequest{}
	for kind, some := range map[string]map[string]guestRequest{"allowed": allowedGuestWrites(), "denied": deniedGuestWrites()} {
		for name, r := range some {
			requests[kind+": "+name] = r
		}
	}
	n := 0
	for name, r := range requests {
		n++
		guest := fmt.Sprintf("guest-%d", n)
		t.Run(name, func(t *testing.T) {
			vmi := newGuest(t, guest)
			if r.was != nil {
				r.was(t, vmi)
			}
			must(t, w.Create(t.Context(), vmi))
			by := r.by
			if by == "" {
				by = nodeA
			}
			want := vmi.DeepCopy()
			r.edit(t, want)
			patch := client.MergeFromWithOptions(vmi, client.MergeFromWithOptimisticLock{})
			check(t, w.as(t, w.agents[by]).Patch(t.Context(), want, patch), r.denied)
		})
	}
}
