// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration/evacuation"
)

// fleet caches the result of evacuation.Fleet: hashing all nodes takes long in large clusters, and
// nearly every pass needs it.
type fleet struct {
	// events counts the events of Nodes that change the hash.
	events atomic.Uint64

	mu sync.Mutex
	// sum, guarded by mu, is the hash for that number of events and that KubeVirt object; empty for none.
	sum    string
	of     uint64
	config configuration
}

// configuration identifies one state of the KubeVirt object's spec.
type configuration struct {
	uid        types.UID
	generation int64
}

// changed must be called after a node has changed in the cache.
func (f *fleet) changed() { f.events.Add(1) }

// get returns the hash of the cluster, computed again only after changes.
func (f *fleet) get(ctx context.Context, c client.Reader, kv *v1.KubeVirt) (string, error) {
	var config configuration
	if kv != nil {
		config = configuration{kv.UID, kv.Generation}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events.Load()
	if f.sum != "" && f.of == events && f.config == config {
		return f.sum, nil
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, readOnly); err != nil {
		return "", fmt.Errorf("migrationctrl: list Nodes: %w", err)
	}
	// For a node that has changed since events were counted, an event will follow.
	f.sum, f.of, f.config = evacuation.Fleet(nodes.Items, kv), events, config
	return f.sum, nil
}
