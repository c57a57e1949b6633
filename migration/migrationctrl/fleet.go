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

	"github.com/virtloom/virtloom/migration"
)

// fleet remembers what migration.Fleet says of the cluster: to sum up all nodes takes long where there
// are many, and it is asked for in nearly every pass.
type fleet struct {
	// events counts those of Nodes that change what is summed up.
	events atomic.Uint64

	mu sync.Mutex
	// sum, guarded by mu, is of so many events and of that KubeVirt object; empty if there is none.
	sum    string
	of     uint64
	config configuration
}

// configuration tells one state of the KubeVirt object's spec from another.
type configuration struct {
	uid        types.UID
	generation int64
}

// changed is to be called after a node has changed in the cache.
func (f *fleet) changed() { f.events.Add(1) }

// get sums up the cluster unless it is as it was.
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
	// Of a node that has changed since events were counted, an event is yet to come.
	f.sum, f.of, f.config = migration.Fleet(nodes.Items, kv), events, config
	return f.sum, nil
}
