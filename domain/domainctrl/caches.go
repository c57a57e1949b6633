// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Caches hold the VirtualMachineInstances of one node. They are two because a
// label selector cannot say "either": a node serves the guests it owns and
// those that are about to come.
type Caches struct {
	// Owned holds the objects labelled kubevirt.io/nodeName=<node>.
	Owned cache.Cache
	// Incoming holds those labelled kubevirt.io/migrationTargetNodeName=<node>.
	Incoming cache.Cache
}

// By label, kubevirt.io/nodeName or kubevirt.io/migrationTargetNodeName, which rights cannot say.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=list;watch

// NewCaches returns the caches of a node. The reconciler hands them to its
// manager, which starts them.
func NewCaches(config *rest.Config, scheme *runtime.Scheme, node string) (*Caches, error) {
	by := func(label string) (cache.Cache, error) {
		c, err := cache.New(config, cache.Options{
			Scheme: scheme,
			ByObject: map[client.Object]cache.ByObject{
				&v1.VirtualMachineInstance{}: {Label: labels.SelectorFromSet(labels.Set{label: node})},
			},
		})
		if err != nil {
			return nil, fmt.Errorf("domainctrl: cache of guests by label %s: %w", label, err)
		}
		return c, nil
	}
	owned, err := by(v1.NodeNameLabel)
	if err != nil {
		return nil, err
	}
	incoming, err := by(v1.MigrationTargetNodeNameLabel)
	if err != nil {
		return nil, err
	}
	return &Caches{Owned: owned, Incoming: incoming}, nil
}
