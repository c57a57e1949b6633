// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// gathered is a snapshot with the additional inputs of the actions.
type gathered struct {
	migration.Snapshot
	key     types.NamespacedName
	owner   expectations.Owner
	verdict expectations.Verdict
	// began is when the pass began.
	began time.Time
	// kubeVirt is the cluster's KubeVirt object, nil if there is none.
	kubeVirt *v1.KubeVirt
	// lateUntil is the earliest time after which one of the late creations can no longer be carried out.
	lateUntil time.Time
}

// gatherer reads the snapshots of migrations.
type gatherer struct{ *Reconciler }

// read reads the migration from the cache; nil if there is none.
func (r gatherer) read(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstanceMigration, error) {
	m := &v1.VirtualMachineInstanceMigration{}
	switch err := r.Client.Get(ctx, key, m); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("migrationctrl: read migration %s: %w", key, err)
	}
	return m, nil
}

// gather reads everything else that one decision about the migration may see, from caches.
// It returns nil when there is no migration.
func (r gatherer) gather(ctx context.Context, key types.NamespacedName, m *v1.VirtualMachineInstanceMigration) (*gathered, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // absence is an answer
	}
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrationctrl: %s: %w", key, err)
	}
	g := &gathered{key: key, owner: expectationsctrl.OwnerOf(m), kubeVirt: kv}
	g.Migration, g.Config, g.began, g.Entered = m, r.config(kv), r.Clock.Now(), storer(r).entered(key)
	if r.gate != nil { // an observer writes nothing
		if g.verdict, err = r.gate.Check(ctx, g.owner); err != nil {
			return nil, fmt.Errorf("migrationctrl: %s: %w", key, err)
		}
	}
	g.Pending = pendingText(g.verdict)
	r.late(g)
	if err := r.related(ctx, &g.Snapshot); err != nil {
		return nil, err
	}
	if err := r.apart(ctx, g); err != nil {
		return nil, err
	}
	if err := r.resolve(ctx, &g.Snapshot); err != nil {
		return nil, err
	}
	return g, nil
}

// late records the creations that may still be carried out, and until when.
func (r gatherer) late(g *gathered) {
	if r.gate == nil {
		return
	}
	var texts []string
	for _, l := range r.gate.Late(g.owner) {
		texts = append(texts, l.String())
		if g.lateUntil.IsZero() || l.Until.Before(g.lateUntil) {
			g.lateUntil = l.Until
		}
	}
	g.Late = strings.Join(texts, "; ")
}

func pendingText(v expectations.Verdict) string {
	var texts []string
	for _, p := range v.Pending {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, "; ")
}

// config returns the configuration in force.
func (r *Reconciler) config(kv *v1.KubeVirt) migration.Config {
	c := r.configured()
	c.AbortBackups = r.Backups != nil
	c.Root = template.ConfigFrom(kv, r.LauncherImage).GateEnabled("Root")
	c.Decentralized = c.Decentralized || decentralized(kv)
	if kv != nil && kv.Spec.Configuration.MigrationConfiguration != nil {
		c.Cluster = kv.Spec.Configuration.MigrationConfiguration
	}
	return c.WithDefaults()
}

// related reads the VMI, its other migrations and its Pods.
func (r gatherer) related(ctx context.Context, s *migration.Snapshot) error {
	m := s.Migration
	ns := client.InNamespace(m.Namespace)
	var all v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &all, ns, client.MatchingFields{migrationByVMI: m.Spec.VMIName}); err != nil {
		return fmt.Errorf("migrationctrl: list the migrations of %s/%s: %w", m.Namespace, m.Spec.VMIName, err)
	}
	for i := range all.Items {
		if all.Items[i].UID != m.UID {
			s.Others = append(s.Others, &all.Items[i])
		}
	}
	guest := &v1.VirtualMachineInstance{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}, guest)
	switch {
	case m.Spec.VMIName == "" || apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("migrationctrl: read VirtualMachineInstance %s/%s: %w", m.Namespace, m.Spec.VMIName, err)
	}
	if s.VMI = migration.VMIOf(m, guest); s.VMI == nil {
		return nil
	}
	return r.pods(ctx, s)
}

// pods reads source and target Pod.
func (r gatherer) pods(ctx context.Context, s *migration.Snapshot) error {
	var list corev1.PodList
	err := r.Client.List(ctx, &list, client.InNamespace(s.VMI.Namespace), client.MatchingFields{podByVMI: string(s.VMI.UID)})
	if err != nil {
		return fmt.Errorf("migrationctrl: list the Pods of %s/%s: %w", s.VMI.Namespace, s.VMI.Name, err)
	}
	pods := make([]*corev1.Pod, 0, len(list.Items))
	recorded := ""
	if s.Migration.Status.Phase != v1.MigrationPhaseUnset && s.Migration.Status.Phase != v1.MigrationPending {
		recorded = s.SourcePodName()
	}
	for i := range list.Items {
		p := &list.Items[i]
		pods = append(pods, p)
		if p.Name == recorded {
			s.SourcePod = p
		}
	}
	if pods, err = r.withTarget(ctx, s, pods); err != nil {
		return err
	}
	s.Launchers = pods
	s.TargetPod = migration.TargetPod(pods, s.Migration.UID)
	s.Targets = migration.TargetOwners(pods, s.Migration.UID)
	switch {
	case s.Migration.IsDecentralizedTarget():
		s.SourcePod = nil // it is in another cluster, even if a Pod here has its name
	case recorded == "":
		s.SourcePod = migration.CurrentPod(s.VMI, pods, s.Migration.UID)
	}
	if err := r.attachments(ctx, s); err != nil {
		return err
	}
	return r.stateClaims(ctx, s)
}

// withTarget adds the target Pod, read live, where it must exist and the cache lacks it: the cache of
// Pods may be behind that of migrations, such as after another controller has created the Pod, and a
// migration whose Pod is gone fails.
func (r gatherer) withTarget(ctx context.Context, s *migration.Snapshot, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	switch s.Migration.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationWaitingForSync, v1.MigrationSucceeded, v1.MigrationFailed:
		return pods, nil
	}
	if s.Migration.IsDecentralizedSource() || migration.TargetPod(pods, s.Migration.UID) != nil {
		return pods, nil
	}
	var live corev1.PodList
	err := r.APIReader.List(ctx, &live, client.InNamespace(s.VMI.Namespace), client.MatchingLabels{v1.MigrationJobLabel: string(s.Migration.UID)})
	if err != nil {
		return nil, fmt.Errorf("migrationctrl: list the target Pods of %s/%s: %w", s.Migration.Namespace, s.Migration.Name, err)
	}
	for i := range live.Items {
		if p := &live.Items[i]; metav1.IsControlledBy(p, s.VMI) {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// attachments reads the Pods that attach hotplugged volumes at the target.
func (r gatherer) attachments(ctx context.Context, s *migration.Snapshot) error {
	if s.TargetPod == nil {
		return nil
	}
	var list corev1.PodList
	err := r.Client.List(ctx, &list, client.InNamespace(s.VMI.Namespace), client.MatchingFields{podByPod: string(s.TargetPod.UID)})
	if err != nil {
		return fmt.Errorf("migrationctrl: list the Pods beside %s/%s: %w", s.TargetPod.Namespace, s.TargetPod.Name, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	s.Attachments = migration.Attachments(pods, s.TargetPod)
	return nil
}

// stateClaims reads the claims with the VMI's state: the current one decides whether there is
// another.
func (r gatherer) stateClaims(ctx context.Context, s *migration.Snapshot) error {
	s.Claims = map[string]*corev1.PersistentVolumeClaim{}
	for range 2 {
		source, target := s.StateClaims()
		for _, name := range []string{source, target} {
			if name == "" || s.Claims[name] != nil {
				continue
			}
			claim := &corev1.PersistentVolumeClaim{}
			err := r.Client.Get(ctx, types.NamespacedName{Namespace: s.Migration.Namespace, Name: name}, claim)
			switch {
			case err == nil:
				s.Claims[name] = claim
			case !apierrors.IsNotFound(err):
				return fmt.Errorf("migrationctrl: read PersistentVolumeClaim %s/%s: %w", s.Migration.Namespace, name, err)
			}
		}
	}
	return nil
}

// input gathers the inputs of rendering the target Pod.
func (r gatherer) input(ctx context.Context, g *gathered) (template.Input, error) {
	in := template.Input{
		VMI: g.VMI, Config: template.ConfigFrom(g.kubeVirt, r.LauncherImage),
		Migration: &render.Migration{
			UID: g.Migration.UID, Name: g.Migration.Name,
			AddedNodeSelector: g.Migration.Spec.AddedNodeSelector, SourcePod: g.SourcePod,
			Receives: g.Migration.IsDecentralizedTarget(),
		},
	}
	in.Config.SidecarShimImage = cmp.Or(r.SidecarShimImage, in.Config.SidecarShimImage)
	_, in.Migration.StateClaim = g.StateClaims()
	var err error
	if in.Facts, err = r.gatherer.TargetFacts(ctx, g.VMI, in.Config, *in.Migration); err != nil {
		return in, fmt.Errorf("migrationctrl: %s: %w", g.key, err)
	}
	if in.Migration.SourceNode, err = r.gatherer.SourceNode(ctx, g.SourcePod); err != nil {
		return in, fmt.Errorf("migrationctrl: %s: %w", g.key, err)
	}
	return in, nil
}
