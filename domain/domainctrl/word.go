// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmipatch"
)

// observed is the observed state of a VMI, and its freshness.
type observed struct {
	// vmi is the object; nil means that it does not exist.
	vmi *v1.VirtualMachineInstance
	// asked is when the request was sent to which the API server answered vmi; zero if a cache did.
	asked time.Time
}

// pass is the state of a pass: the observed object, and the snapshot and plan made of it.
type pass struct {
	observed
	snapshot plan.Snapshot
	plan     plan.Plan
}

// touchesGuest reports whether the plan changes a domain or its files.
func (v pass) touchesGuest() bool {
	for _, t := range v.plan.Actions {
		if t.TouchesGuest() {
			return true
		}
	}
	return false
}

// cached reads the object from the node's caches. A miss proves nothing, so it
// is followed by a live read.
func (r *Reconciler) cached(ctx context.Context, key types.NamespacedName) (observed, error) {
	for _, c := range []client.Reader{r.Caches.Owned, r.Caches.Incoming} {
		vmi := &v1.VirtualMachineInstance{}
		err := c.Get(ctx, key, vmi)
		if err == nil {
			return observed{vmi: vmi}, nil
		}
		if !apierrors.IsNotFound(err) {
			return observed{}, fmt.Errorf("domainctrl: read %s from the cache: %w", key, err)
		}
	}
	return r.live(ctx, key)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get

func (r *Reconciler) live(ctx context.Context, key types.NamespacedName) (observed, error) {
	w := observed{vmi: &v1.VirtualMachineInstance{}, asked: r.Clock.Now()}
	err := r.APIReader.Get(ctx, key, w.vmi)
	switch {
	case err == nil:
		return w, nil
	case absent(err):
		w.vmi = nil
		return w, nil
	default:
		return observed{}, fmt.Errorf("domainctrl: read VirtualMachineInstance %s: %w", key, err)
	}
}

// absent reports whether the API server confirms that there is no such object. It answers 404 as
// well when it does not serve the kind, as while the definition is being replaced: that proves
// nothing about any VMI.
func absent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// decide gathers a snapshot of the observed object, and decides. A lease that cannot be read is
// reported once, as an event: the status is its owner's to write, and the owner is unknown.
func (r *Reconciler) decide(ctx context.Context, key types.NamespacedName, w observed) (pass, error) {
	v := pass{observed: w}
	var err error
	if v.snapshot, err = (gatherer{r}).look(ctx, key, w.vmi); err == nil {
		v.plan, err = plan.Decide(v.snapshot, r.Clock.Now())
	}
	unreadable := ""
	if errors.Is(err, handoff.ErrNotALease) {
		unreadable = err.Error()
	}
	if r.lastEvents.news(key, unreadable) && r.Recorder != nil {
		r.Recorder.Eventf(w.vmi, nil, corev1.EventTypeWarning, v1.SyncFailed.String(), "Sync", "node %s: %s", r.NodeName, unreadable)
	}
	return v, err
}

// confirm makes sure that a plan that would touch a domain, without a write of the object that
// proves it to be current, is made for the object read live.
func (r *Reconciler) confirm(ctx context.Context, key types.NamespacedName, v pass) (pass, error) {
	if !v.touchesGuest() || changed(v.vmi, v.plan.VMI) || handoff.Confirmed(v.asked, r.Clock.Now()) == nil {
		return v, nil
	}
	w, err := r.live(ctx, key)
	if err != nil {
		return v, err
	}
	if sameVersion(w.vmi, v.vmi) {
		v.observed = w
		return v, nil
	}
	return r.decide(ctx, key, w)
}

func sameVersion(a, b *v1.VirtualMachineInstance) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
}

// within returns how long the task may take at the hypervisor, by the API server's answer about the
// lease and its age. The error is handoff.ErrUnconfirmed or handoff.ErrFenced if it must not begin:
// this process has been too slow, or the lease has changed.
func (r *Reconciler) within(v pass, t domain.Action) (time.Duration, error) {
	if !t.TouchesGuest() {
		return r.CallTimeout, nil
	}
	now := r.Clock.Now()
	err := handoff.Confirmed(v.asked, now)
	if err == nil && t.Command != (handoff.Command{}) {
		var lease handoff.Lease
		if lease, err = handoff.Of(v.vmi); err == nil {
			err = lease.Authorize(t.Command, v.asked, now)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("domainctrl: %s: %w", t, err)
	}
	return min(r.CallTimeout, v.asked.Add(handoff.ActWithin).Sub(now)), nil
}

// outdated reports whether an error means that the pass was based on outdated state.
func outdated(err error) bool {
	return vmipatch.Refused(err) || apierrors.IsConflict(err) || errors.Is(err, handoff.ErrUnconfirmed) || errors.Is(err, handoff.ErrFenced)
}
