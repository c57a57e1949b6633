// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/internal/readonly"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// ErrReadOnly means that one who is to look only was about to write.
var ErrReadOnly = readonly.Err

// Observe makes the Reconciler one that looks only, instead of SetupWithManager:
// [Reconciler.Explain] and [Reconciler.Plan] then tell what the controller with the same settings
// would do. Client must read from what the indexes are added to, and its RESTMapper must know the
// kinds that can be read. Whatever would write gets ErrReadOnly; without a Gate the caches are taken
// to show all that was written.
//
// An observer has not seen for how long nodes have been silent. It believes the time in their heartbeats,
// which the controller does not.
func (r *Reconciler) Observe(ctx context.Context, ix client.FieldIndexer) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.Client = readonly.Client{Source: r.Client}
	r.observes = true
	r.nodes = &nodes{client: r.Client, clock: r.Clock, after: r.SilentAfter, guests: r.onNode, queue: &r.backlog, beats: map[string]beat{}, believes: true}
	r.kinds = &kinds{served: map[schema.GroupVersionKind]bool{}}
	for _, of := range r.optional() {
		switch _, err := r.Client.RESTMapper().RESTMapping(of.kind.GroupKind(), of.kind.Version); {
		case err == nil:
			r.kinds.served[of.kind] = true
		case !meta.IsNoMatchError(err):
			return fmt.Errorf("vmictrl: look for %s: %w", of.kind, err)
		}
	}
	return index(ctx, ix)
}

// Explain tells where a guest stands, what is in its way, and what mends that; nil if there is no such
// guest, or it is out of scope. It decides as the next pass would, and tries to render what that would
// create, but writes nothing.
func (r *Reconciler) Explain(ctx context.Context, guest types.NamespacedName) (*vmi.Diagnosis, error) {
	obj, err := r.read(ctx, guest)
	if err != nil {
		return nil, err
	}
	g, err := r.gather(ctx, guest, obj, true)
	if err != nil || g == nil {
		return nil, err
	}
	now := r.Clock.Now()
	var d vmi.Diagnosis
	if g.outdated { // the rest was not gathered
		d = vmi.Diagnose(vmi.Snapshot{VMI: g.VMI, Unseen: g.Unseen, Config: g.Config}, now)
		return &d, nil
	}
	failed := r.rehearse(g, vmi.Decide(g.Snapshot, now))
	d = vmi.Diagnose(g.Snapshot, now)
	blame(&d, failed)
	return &d, nil
}

// Unseen tells which writes for a guest the caches do not show yet, the oldest first.
func (r *Reconciler) Unseen(guest types.NamespacedName) []expectations.Pending {
	if r.Gate == nil {
		return nil
	}
	return r.Gate.Tracker().Pending(guest)
}

// rehearse renders what the plan would create, and notes in the snapshot what fails: the error of that.
func (r *Reconciler) rehearse(g *gathered, plan vmi.Plan) error {
	for _, a := range plan.Actions {
		var err error
		switch a.Verb {
		case vmi.CreateLauncher:
			_, err = r.Renderer.Launcher(g.input)
		case vmi.CreateTemporary:
			_, err = r.Renderer.Temporary(g.input)
		case vmi.CreateAttachment:
			_, err = r.Renderer.HotplugAttachment(plugging(g, a))
		case vmi.CreateTrigger:
			_, err = r.Renderer.HotplugTrigger(plugging(g, a))
		default:
			continue // that fails in the cluster only
		}
		if err != nil {
			g.Failure = &vmi.Failure{Reason: a.Fault, Message: err.Error()}
			return err
		}
	}
	return nil
}

// blame says, of a Pod that cannot be rendered, which part of the guest is at fault.
func blame(d *vmi.Diagnosis, failed error) {
	var fault *template.Error
	if !errors.As(failed, &fault) {
		return
	}
	i := slices.IndexFunc(d.Findings, func(f vmi.Finding) bool { return f.What == failed.Error() })
	if i < 0 {
		return
	}
	f := &d.Findings[i]
	f.Kind, f.Why, f.By = vmi.InvalidSpec, "no Pod can be made of the guest as it is", vmi.ByUser
	f.Remedy = "correct " + fault.Field + " and make the guest anew"
	if fault.Field == "" {
		f.Remedy = "do as the message says"
	}
	if fault.Remedy != "" {
		f.Remedy = fault.Remedy
	}
	f.Until = "the guest is made anew"
	if errors.Is(failed, template.ErrMissingFact) {
		f.Until = "what " + fault.Field + " names is there"
		if fault.Remedy == "" {
			f.Remedy = "create what " + fault.Field + " names, or correct it and make the guest anew"
		}
	}
	switch {
	case strings.HasPrefix(fault.Field, "spec.networks"), strings.HasPrefix(fault.Field, "spec.domain.devices.interfaces"):
		f.Kind = vmi.InvalidNetwork
	case strings.HasPrefix(fault.Field, "spec.volumes") && errors.Is(failed, template.ErrMissingFact):
		f.Kind = vmi.WaitingForStorage
	}
}

// beaten is when a node says that it last gave a sign of life; false if it does not.
func beaten(heartbeat string, now time.Time) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, heartbeat)
	return at, err == nil && !at.After(now)
}

// wantsAddress tells whether the guest is to have an address on VSOCK, and is about to be handed over.
func wantsAddress(g *v1.VirtualMachineInstance) bool {
	wants := g.Spec.Domain.Devices.AutoattachVSOCK
	return wants != nil && *wants && g.Status.VSOCKCID == nil && g.Status.Phase == v1.Scheduling
}
