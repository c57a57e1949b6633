// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// onePerGuest is a domain.Connector: every guest has a hypervisor of its own, as long as its Pod runs.
type onePerGuest struct {
	mu   sync.Mutex
	pods map[types.UID]*domaintest.Hypervisor // by the UID of the Pod
}

// Connect returns the hypervisor in the guest's Pod.
func (o *onePerGuest) Connect(_ context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (domain.Hypervisor, error) {
	if pod == nil || pod.Status.Phase != corev1.PodRunning {
		return nil, fmt.Errorf("the Pod of %s/%s does not run: %w", vmi.Namespace, vmi.Name, domain.ErrNotReady)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.pods[pod.UID]
	if h == nil {
		h = domaintest.New(pod.Name)
		o.pods[pod.UID] = h
	}
	return h, nil
}

// A connector decides which hypervisor runs a guest: the node's, or one that the guest has for itself.
func ExampleConnector() {
	ctx := context.Background()
	var connector domain.Connector = &onePerGuest{pods: map[types.UID]*domaintest.Hypervisor{}}

	// Before its Pod runs a guest has no hypervisor, which passes.
	_, err := connector.Connect(ctx, exampleVMI(), nil)
	fmt.Println(err, errors.Is(err, domain.ErrNotReady))

	for name, uid := range map[string]types.UID{"web": "5b6c1a2e-0000-4000-8000-000000000001", "db": "5b6c1a2e-0000-4000-8000-000000000002"} {
		vmi, pod := exampleVMI(), &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		vmi.Name, vmi.UID, pod.UID = name, uid, types.UID("pod-"+name)
		h, err := connector.Connect(ctx, vmi, pod)
		if err != nil {
			fmt.Println(err)
			return
		}
		d, err := domain.Convert(vmi, exampleFacts())
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := h.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
			fmt.Println(err)
			return
		}
		states, err := h.List(ctx)
		fmt.Println(len(states), states[0].Name, err)
	}

	// Where the node's own hypervisor runs all guests, this is all there is to it.
	node := domain.NodeHypervisor(domaintest.New("node-1"))
	a, _ := node.Connect(ctx, exampleVMI(), nil)
	b, err := node.Connect(ctx, &v1.VirtualMachineInstance{}, nil)
	fmt.Println(a == b, err)
	// Unordered output:
	// the Pod of default/web does not run: not ready true
	// 1 default_web <nil>
	// 1 default_db <nil>
	// true <nil>
}
