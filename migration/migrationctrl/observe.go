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
	"github.com/virtloom/virtloom/migration"
)

// ErrReadOnly means that one who is to look only was about to write.
var ErrReadOnly = readonly.Err

// Observe makes the Reconciler one that looks only, instead of SetupWithManager:
// [Reconciler.Explain] and [Reconciler.PlanDrain] then tell what the controller with the same
// settings would do. Client must read from the cache that the indexes are added to, which
// must be started afterwards. Whatever would write gets ErrReadOnly.
func (r *Reconciler) Observe(ctx context.Context, ix client.FieldIndexer) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.Client = readonly.Client{Source: r.Client}
	if r.Backups != nil {
		r.Backups = idle{} // that they would be aborted is part of what is told
	}
	return index(ctx, ix)
}

// idle is who aborts no backups.
type idle struct{}

// AbortBackup is part of BackupAborter.
func (idle) AbortBackup(context.Context, *v1.VirtualMachineInstance, string) error {
	return ErrReadOnly
}

// Explain tells where a migration stands, behind what, and what ends that; nil if there is no such
// migration. It reads from the caches, which must have been started, and writes and
// reserves nothing. The queue it tells of is this process's own: in a controller the one it
// serves, else one that is built from the API as a controller does when it starts.
func (r *Reconciler) Explain(ctx context.Context, key types.NamespacedName) (*migration.Explanation, error) {
	if err := r.restore(ctx); err != nil {
		return nil, err
	}
	m, err := r.read(ctx, key)
	if err != nil {
		return nil, err
	}
	g, err := r.gather(ctx, key, m)
	if err != nil || g == nil {
		return nil, err
	}
	r.rehearse(ctx, g)
	now := r.Clock.Now()
	g.Slot = r.Admission.Explain(key, now)
	e := migration.Explain(g.Snapshot, now)
	if err := r.aim(ctx, g, &e); err != nil {
		return nil, err
	}
	return &e, nil
}

// aim tells where the guest could go, as long as that is open.
func (r *Reconciler) aim(ctx context.Context, g *gathered, e *migration.Explanation) error {
	if g.VMI == nil || g.Migration.IsFinal() || g.State() != nil {
		return nil
	}
	pod, why := r.aimed(ctx, g)
	if pod == nil {
		e.Targets = &migration.Targets{Candidates: []string{}, Summary: "unknown: " + why}
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
	e.Aim(migration.NewNodeUsage(others).Fit(pod, g.VMI.Status.NodeName, pointers(nodes.Items)))
	return nil
}

// aimed returns the target Pod as it is, or would be; else why that is not known, which is part of
// the explanation.
func (r *Reconciler) aimed(ctx context.Context, g *gathered) (pod *corev1.Pod, why string) {
	switch {
	case g.TargetPod != nil:
		return g.TargetPod, ""
	case g.SourcePod == nil && !g.Migration.IsDecentralizedTarget():
		return nil, "the guest has no Pod, which its target Pod is made after"
	}
	pod, err := r.render(ctx, g)
	if err != nil {
		return nil, err.Error()
	}
	return pod, ""
}

// Usage tells which slots of migrations are in use, as [Reconciler.Explain] tells of the queue.
func (r *Reconciler) Usage(ctx context.Context) (migration.Usage, error) {
	if err := r.restore(ctx); err != nil {
		return migration.Usage{}, err
	}
	return r.Admission.Usage(), nil
}

// Unseen tells which writes for a migration the caches do not show yet, the oldest first.
func (r *Reconciler) Unseen(key types.NamespacedName) []expectations.Pending {
	if r.gate == nil {
		return nil
	}
	return r.gate.Tracker().Pending(key)
}
