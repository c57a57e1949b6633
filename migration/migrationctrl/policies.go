// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/policy"
)

// policies caches the index of the cluster's MigrationPolicies, which is rebuilt only after
// one has changed. The zero value is ready; safe for concurrent use.
type policies struct {
	// changes counts the events of policies.
	changes atomic.Int64
	// built is nil before the first use.
	built atomic.Pointer[builtPolicies]
	// building serializes builds.
	building sync.Mutex
}

// builtPolicies is an index and the number of changes that it is certain to include.
type builtPolicies struct {
	policy.Policies
	changes int64
}

// changed notes that the cache has changed.
func (p *policies) changed() { p.changes.Add(1) }

// get returns the index of the policies in the reader, a cache.
func (p *policies) get(ctx context.Context, from client.Reader) (policy.Policies, error) {
	if b := p.fresh(); b != nil {
		return b.Policies, nil
	}
	p.building.Lock()
	defer p.building.Unlock()
	if b := p.fresh(); b != nil {
		return b.Policies, nil
	}
	changes := p.changes.Load() // before the list, so that no change is missed
	var list v1alpha1.MigrationPolicyList
	if err := from.List(ctx, &list); err != nil {
		return policy.Policies{}, fmt.Errorf("migrationctrl: list MigrationPolicies: %w", err)
	}
	b := &builtPolicies{Policies: policy.NewPolicies(list.Items), changes: changes}
	p.built.Store(b)
	return b.Policies, nil
}

// fresh returns the index unless a policy has changed since it was built.
func (p *policies) fresh() *builtPolicies {
	if b := p.built.Load(); b != nil && b.changes == p.changes.Load() {
		return b
	}
	return nil
}

// resolve adds the policy in force and its options, for as long as they may matter. An error
// of resolving them is part of the snapshot.
func (r gatherer) resolve(ctx context.Context, s *migration.Snapshot) error {
	if s.VMI == nil || s.Migration.IsFinal() {
		return nil
	}
	all, err := r.policies.get(ctx, r.Client)
	if err != nil {
		return err
	}
	m := s.Migration
	labels, err := r.gatherer.NamespaceLabels(ctx, m.Namespace)
	if err != nil {
		return fmt.Errorf("migrationctrl: %s/%s: %w", m.Namespace, m.Name, err)
	}
	s.Resolution, _ = policy.Resolve(all.Match(s.VMI.Labels, labels), s.Config.Cluster)
	return nil
}

// minds reports whether a change of policies, of the cluster's configuration or of the
// namespace's labels may matter to the migration now. Before its handoff, when it resolves its
// options, it matters only if it waits for a policy to be fixed.
func minds(m *v1.VirtualMachineInstanceMigration) bool {
	switch m.Status.Phase {
	case v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning:
		return true
	}
	c := migration.Condition(m.Status, migration.ConditionWaiting)
	return c != nil && c.Reason == string(migration.ReasonPolicyInvalid)
}
