// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/internal/readonly"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

// ErrReadOnly means that an observer attempted a write.
var ErrReadOnly = readonly.Err

// Observe makes the Reconciler a read-only observer, instead of SetupWithManager:
// [Reconciler.Explain] and [Reconciler.Plan] then report what the controller with the same settings
// would do. Client must read from the cache that the indexes are added to, and its RESTMapper must
// know the served kinds. Every write returns ErrReadOnly; without a Gate the caches are assumed to
// have observed all writes.
//
// An observer does not know how long nodes have been unresponsive. It trusts the time in their
// heartbeats, which the controller does not.
func (r *Reconciler) Observe(ctx context.Context, ix client.FieldIndexer) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.Client = readonly.Client{Source: r.Client}
	r.observes = true
	r.nodes = &nodes{client: r.Client, clock: r.Clock, after: r.SilentAfter, vmis: nodeGatherer{r}.onNode, queue: &r.backlog, beats: map[string]beat{}, believes: true}
	var err error
	if r.kinds, err = optional.Served(r.Client.RESTMapper(), gatherer{r}.optional()); err != nil {
		return fmt.Errorf("vmictrl: %w", err)
	}
	return index(ctx, ix)
}

// Explain returns the state of a VMI, what blocks it, and the remedies; nil if the VMI does not
// exist or is out of scope. It decides like the next pass, and renders what that would create, but
// writes nothing.
func (r *Reconciler) Explain(ctx context.Context, key types.NamespacedName) (*diagnose.Diagnosis, error) {
	obj, err := gatherer{r}.read(ctx, key)
	if err != nil {
		return nil, err
	}
	g, err := gatherer{r}.gather(ctx, key, obj, true)
	if err != nil || g == nil {
		return nil, err
	}
	now := r.Clock.Now()
	var d diagnose.Diagnosis
	if g.outdated { // the remaining input was not gathered
		d = diagnose.Of(vmi.Snapshot{VMI: g.VMI, Pending: g.Pending, Config: g.Config}, now)
		return &d, nil
	}
	failed := r.rehearse(g, vmi.Decide(g.Snapshot, now))
	d = diagnose.Of(g.Snapshot, now)
	blame(&d, failed)
	return &d, nil
}

// Pending returns the writes for a VMI that the caches have not observed yet, the oldest first.
func (r *Reconciler) Pending(key types.NamespacedName) []expectations.Pending {
	if r.Gate == nil {
		return nil
	}
	return r.Gate.Tracker().Pending(key)
}

// rehearse renders what the plan would create; it records the first error in the snapshot and returns it.
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
			continue // all other actions fail in the cluster only
		}
		if err != nil {
			g.Failure = &vmi.Failure{Reason: a.Fault, Message: err.Error()}
			return err
		}
	}
	return nil
}

// blame adds the invalid field to the finding about a Pod that cannot be rendered.
func blame(d *diagnose.Diagnosis, failed error) {
	var fault *render.Error
	if !errors.As(failed, &fault) {
		return
	}
	i := slices.IndexFunc(d.Findings, func(f diagnose.Finding) bool { return f.What == failed.Error() })
	if i < 0 {
		return
	}
	f := &d.Findings[i]
	f.Kind, f.Why, f.Responsible = diagnose.InvalidSpec, "no Pod can be rendered from the spec", handoff.ByUser
	f.Remedy = "correct " + fault.Field + " and recreate the VirtualMachineInstance"
	if fault.Field == "" {
		f.Remedy = "do as the message says"
	}
	if fault.Remedy != "" {
		f.Remedy = fault.Remedy
	}
	f.Until = "the VirtualMachineInstance is recreated"
	if errors.Is(failed, render.ErrMissingFact) {
		f.Until = "the object named by " + fault.Field + " exists"
		if fault.Remedy == "" {
			f.Remedy = "create the object named by " + fault.Field + ", or correct the field and recreate the VirtualMachineInstance"
		}
	}
	switch {
	case strings.HasPrefix(fault.Field, "spec.networks"), strings.HasPrefix(fault.Field, "spec.domain.devices.interfaces"):
		f.Kind = diagnose.InvalidNetwork
	case strings.HasPrefix(fault.Field, "spec.volumes") && errors.Is(failed, render.ErrMissingFact):
		f.Kind = diagnose.WaitingForStorage
	}
}

// beaten returns the time in a heartbeat; false if it is invalid or in the future.
func beaten(heartbeat string, now time.Time) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, heartbeat)
	return at, err == nil && !at.After(now)
}

// wantsAddress reports whether the VMI requests a VSOCK CID, and its handoff is next.
func wantsAddress(g *v1.VirtualMachineInstance) bool {
	wants := g.Spec.Domain.Devices.AutoattachVSOCK
	return wants != nil && *wants && g.Status.VSOCKCID == nil && g.Status.Phase == v1.Scheduling
}
