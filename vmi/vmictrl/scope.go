// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	v1 "kubevirt.io/api/core/v1"
)

// Scope selects the VMIs that a Reconciler reconciles; the zero value selects all. A VMI that
// leaves the scope is ignored from then on. To save the memory for objects outside the scope,
// restrict the manager's cache as well (cache.Options).
type Scope struct {
	// Namespaces are the namespaces of the VMIs; none means all.
	Namespaces []string
	// Selector selects VMIs by their labels; nil means all.
	Selector labels.Selector
	// Shard is the index of the shard among Shards: each VMI belongs to one, by its UID.
	// Shards of 0 or 1 disables sharding.
	Shard, Shards int
}

func (s Scope) validate() error {
	if s.Shards < 0 || s.Shard < 0 || s.Shard >= max(s.Shards, 1) {
		return fmt.Errorf("vmictrl: Reconciler.Scope: shard %d of %d: Invalid value, number shards from 0", s.Shard, s.Shards)
	}
	if slices.Contains(s.Namespaces, "") {
		return errors.New("vmictrl: Reconciler.Scope.Namespaces: Invalid value: empty name; leave the list empty for all namespaces")
	}
	return nil
}

// Has reports whether the VMI is in the scope.
func (s Scope) Has(g *v1.VirtualMachineInstance) bool {
	switch {
	case len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, g.Namespace):
		return false
	case s.Selector != nil && !s.Selector.Matches(labels.Set(g.Labels)):
		return false
	case s.Shards < 2:
		return true
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(g.UID))
	return int(h.Sum64()%uint64(s.Shards)) == s.Shard //nolint:gosec // both are small and not negative
}
