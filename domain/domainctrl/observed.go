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

	"github.com/virtloom/virtloom/domain/action"
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
	// lease is that of vmi, the zero value if leaseErr says that it cannot be parsed, or vmi is nil.
	lease    handoff.Lease
	leaseErr error
}

// observe returns what a read, or a write, has returned.
func observe(vmi *v1.VirtualMachineInstance, asked time.Time) observed {
	w := observed{vmi: vmi, asked: asked}
	if vmi != nil {
		w.lease, w.leaseErr = handoff.Of(vmi)
	}
	return w
}

// role returns the role of the node for the VMI; RoleNone if its lease cannot be parsed.
func (w observed) role(node string) handoff.Role {
	if w.vmi == nil || w.leaseErr != nil {
		return handoff.RoleNone
	}
	return handoff.RoleOf(w.lease, node)
}

// pass is the state of a pass: the observed object, and the snapshot and plan made of it.
type pass struct {
	observed
	snapshot plan.Snapshot
	plan     plan.Plan
}

// touchesDomain reports whether the plan changes a domain or its files.
func (v pass) touchesDomain() bool {
	for _, t := range v.plan.Actions {
		if t.TouchesDomain() {
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
			return observe(vmi, time.Time{}), nil
		}
		if !apierrors.IsNotFound(err) {
			return observed{}, fmt.Errorf("domainctrl: read %s from the cache: %w", key, err)
		}
	}
	return r.live(ctx, key)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get

func (r *Reconciler) live(ctx context.Context, key types.NamespacedName) (observed, error) {
	vmi, asked := &v1.VirtualMachineInstance{}, r.Clock.Now()
	err := r.APIReader.Get(ctx, key, vmi)
	switch {
	case err == nil:
		return observe(vmi, asked), nil
	case absent(err):
		return observe(nil, asked), nil
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

// unreadable reports a lease that cannot be parsed, once, as an event: the status is its owner's to
// write, and the owner is unknown.
func (r *Reconciler) unreadable(key types.NamespacedName, w observed) {
	why := ""
	if errors.Is(w.leaseErr, handoff.ErrNotALease) {
		why = w.leaseErr.Error()
	}
	if r.lastEvents.news(key, why) && r.Recorder != nil {
		r.Recorder.Eventf(w.vmi, nil, corev1.EventTypeWarning, v1.SyncFailed.String(), "Sync", "node %s: %s", r.NodeName, why)
	}
}

// errStale is the error of a plan for an object that the API server no longer has like that.
var errStale = errors.New("the cached VirtualMachineInstance is outdated")

// confirm makes sure that a plan that would touch a domain, without a write of the object that
// proves it to be current, is made for the object read live. The error is errStale if it is not.
func (r *Reconciler) confirm(ctx context.Context, key types.NamespacedName, v pass) (observed, error) {
	if !v.touchesDomain() || changed(v.vmi, v.plan.VMI) || handoff.Confirmed(v.asked, r.Clock.Now()) == nil {
		return v.observed, nil
	}
	w, err := r.live(ctx, key)
	if err == nil && !sameVersion(w.vmi, v.vmi) {
		err = fmt.Errorf("domainctrl: %s: %w", key, errStale)
	}
	return w, err
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
func (r *Reconciler) within(v pass, t action.Action) (time.Duration, error) {
	if !t.TouchesDomain() {
		return r.CallTimeout, nil
	}
	now := r.Clock.Now()
	err := handoff.Confirmed(v.asked, now)
	if err == nil && t.Command != (handoff.Command{}) {
		if err = v.leaseErr; err == nil {
			err = v.lease.Authorize(t.Command, v.asked, now)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("domainctrl: %s: %w", t, err)
	}
	return min(r.CallTimeout, v.asked.Add(handoff.ActWithin).Sub(now)), nil
}

// outdated reports whether an error means that the pass was based on outdated state.
func outdated(err error) bool {
	return errors.Is(err, errStale) || vmipatch.LostRace(err) || errors.Is(err, handoff.ErrUnconfirmed) || errors.Is(err, handoff.ErrFenced)
}
