// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/plan"
)

// Caches hold the VirtualMachineInstances of one node, and its Pods. There are two caches of VMIs
// because a label selector has no "or": a node serves the VMIs it owns and those that are about to
// migrate to it.
type Caches struct {
	// Owned holds the VMIs labelled kubevirt.io/nodeName=<node>.
	Owned cache.Cache
	// Incoming holds the VMIs labelled kubevirt.io/migrationTargetNodeName=<node>.
	Incoming cache.Cache
	// Pods holds the Pods of the node (spec.nodeName), the evidence that a controller assigned a
	// VMI to it, with the indexes that [NewCaches] adds.
	Pods cache.Cache
}

// Indexes of Pods: by the UID of the controlling VMI, and by the Pod's own UID.
const (
	podByVMI = "domainctrl.podByVMI"
	podByUID = "domainctrl.podByUID"
)

// By label, kubevirt.io/nodeName or kubevirt.io/migrationTargetNodeName, which rights cannot say.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=list;watch

// NewCaches returns the caches of a node. The reconciler adds them to its manager, which starts
// them.
func NewCaches(config *rest.Config, scheme *runtime.Scheme, node string) (*Caches, error) {
	by := func(label string) (cache.Cache, error) {
		c, err := cache.New(config, cache.Options{
			Scheme: scheme,
			ByObject: map[client.Object]cache.ByObject{
				&v1.VirtualMachineInstance{}: {Label: labels.SelectorFromSet(labels.Set{label: node})},
			},
		})
		if err != nil {
			return nil, fmt.Errorf("domainctrl: cache of VMIs by label %s: %w", label, err)
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
	pods, err := nodePods(config, scheme, node)
	if err != nil {
		return nil, err
	}
	return &Caches{Owned: owned, Incoming: incoming, Pods: pods}, nil
}

// nodePods is the cache of the node's Pods.
func nodePods(config *rest.Config, scheme *runtime.Scheme, node string) (cache.Cache, error) {
	c, err := cache.New(config, cache.Options{
		Scheme: scheme,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: podsOnNode(node), Transform: cache.TransformStripManagedFields()},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("domainctrl: cache of the Pods of the node: %w", err)
	}
	byGuest := func(o client.Object) []string {
		if _, uid, launches := plan.VMIOf(o.(*corev1.Pod)); launches {
			return []string{string(uid)}
		}
		return nil
	}
	byUID := func(o client.Object) []string { return []string{string(o.GetUID())} }
	ctx := context.Background() //nolint:forbidigo // not used before the cache runs
	if err := errors.Join(c.IndexField(ctx, &corev1.Pod{}, podByVMI, byGuest), c.IndexField(ctx, &corev1.Pod{}, podByUID, byUID)); err != nil {
		return nil, fmt.Errorf("domainctrl: index the Pods of the node: %w", err)
	}
	return c, nil
}

// podsOnNode selects the Pods of a node.
func podsOnNode(node string) fields.Selector {
	return fields.OneTermEqualSelector("spec.nodeName", node)
}
