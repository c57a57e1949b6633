// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/internal/readonly"
	"github.com/virtloom/virtloom/migration/explain"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/migration/queue"
)

// ErrReadOnly means that an observer was about to write.
var ErrReadOnly = readonly.Err

// Observe sets the Reconciler up as an observer, instead of SetupWithManager:
// [Reconciler.Explain] and [Reconciler.PlanDrain] then report what a controller with the same
// settings would do. Client must read from the cache that the indexes are added to, which
// must be started afterwards. Writes fail with ErrReadOnly.
func (r *Reconciler) Observe(ctx context.Context, ix client.FieldIndexer) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.Client = readonly.Client{Source: r.Client}
	if r.Backups != nil {
		r.Backups = idle{} // the explanation includes aborted backups
	}
	return index(ctx, ix)
}

// idle aborts no backups.
type idle struct{}

// AbortBackup implements BackupAborter.
func (idle) AbortBackup(context.Context, *v1.VirtualMachineInstance, string) error {
	return ErrReadOnly
}

// Explain reports where a migration stands, behind what, and what ends that; nil if the migration
// does not exist. It reads from the caches, which must have been started, and writes and reserves
// nothing. The queue is this process's own: in a controller the one it serves, else one built
// from the API as at the start of a controller.
func (r *Reconciler) Explain(ctx context.Context, key types.NamespacedName) (*explain.Explanation, error) {
	if err := (capacity{r}).restore(ctx); err != nil {
		return nil, err
	}
	m, err := gatherer{r}.read(ctx, key)
	if err != nil {
		return nil, err
	}
	g, err := gatherer{r}.gather(ctx, key, m)
	if err != nil || g == nil {
		return nil, err
	}
	fitter{r}.rehearse(ctx, g)
	now := r.Clock.Now()
	g.Slot = r.Admission.Explain(key, now)
	e := explain.Explain(g.Snapshot, now)
	if err := (explainer{r}).aim(ctx, g, &e); err != nil {
		return nil, err
	}
	return &e, nil
}

// explainer adds the nodes to explanations.
type explainer struct{ *Reconciler }

// aim adds the possible targets of the VMI, as long as they are open.
func (r explainer) aim(ctx context.Context, g *gathered, e *explain.Explanation) error {
	if g.VMI == nil || g.Migration.IsFinal() || g.State() != nil {
		return nil
	}
	pod, why := r.aimed(ctx, g)
	if pod == nil {
		e.Targets = &explain.Targets{Candidates: []string{}, Summary: "unknown: " + why}
		return nil
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := errors.Join(r.Client.List(ctx, &nodes), r.Client.List(ctx, &pods)); err != nil {
		return fmt.Errorf("migrationctrl: list Nodes and Pods: %w", err)
	}
	others := make([]*corev1.Pod, 0, len(pods.Items))
	for i := range pods.Items {
		if pods.Items[i].UID != pod.UID || pod.UID == "" {
			others = append(others, &pods.Items[i])
		}
	}
	e.Aim(placement.NewNodeUsage(others).Fit(pod, g.VMI.Status.NodeName, pointers(nodes.Items)))
	return nil
}

// aimed returns the target Pod as it is, or would be; else why it is unknown, which is part of the
// explanation.
func (r explainer) aimed(ctx context.Context, g *gathered) (pod *corev1.Pod, why string) {
	switch {
	case g.TargetPod != nil:
		return g.TargetPod, ""
	case g.SourcePod == nil && !g.Migration.IsDecentralizedTarget():
		return nil, "the VMI has no Pod to derive its target Pod from"
	}
	pod, err := fitter(r).render(ctx, g)
	if err != nil {
		return nil, err.Error()
	}
	return pod, ""
}

// Usage returns the slots in use, from the same queue as [Reconciler.Explain].
func (r *Reconciler) Usage(ctx context.Context) (queue.Usage, error) {
	if err := (capacity{r}).restore(ctx); err != nil {
		return queue.Usage{}, err
	}
	return r.Admission.Usage(), nil
}

// Pending returns the writes for a migration that the caches do not show yet, the oldest first.
func (r *Reconciler) Pending(key types.NamespacedName) []expectations.Pending {
	if r.gate == nil {
		return nil
	}
	return r.gate.Tracker().Pending(key)
}
