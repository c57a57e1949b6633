// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
)

func connectorVMI() *v1.VirtualMachineInstance {
	size := resource.MustParse("64Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: &size},
				Devices: v1.Devices{
					Disks: []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
				},
			},
			Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{},
			}}},
		},
	}
}

func connectorFacts() convert.Facts {
	return convert.Facts{
		Dir:   "/var/lib/virtloom/guests/web",
		Disks: map[string]convert.DiskSource{"root": {Path: "/srv/volumes/root.img", Shared: true}},
	}
}

// onePerGuest is a domainctrl.Connector: each VMI has a hypervisor of its own while its Pod runs.
type onePerGuest struct {
	mu   sync.Mutex
	pods map[types.UID]*memory.Hypervisor // by the UID of the Pod
}

// Connect returns the hypervisor in the VMI's Pod.
func (o *onePerGuest) Connect(_ context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (domain.Hypervisor, error) {
	if pod == nil || pod.Status.Phase != corev1.PodRunning {
		return nil, fmt.Errorf("the Pod of %s/%s does not run: %w", vmi.Namespace, vmi.Name, domain.ErrNotReady)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.pods[pod.UID]
	if h == nil {
		h = memory.New(pod.Name)
		o.pods[pod.UID] = h
	}
	return h, nil
}

// A connector finds the hypervisors of VMIs that have one each.
func ExampleConnector() {
	ctx := context.Background()
	var connector domainctrl.Connector = &onePerGuest{pods: map[types.UID]*memory.Hypervisor{}}

	// Before its Pod runs a VMI has no hypervisor: not ready.
	_, err := connector.Connect(ctx, connectorVMI(), nil)
	fmt.Println(err, errors.Is(err, domain.ErrNotReady))

	for name, uid := range map[string]types.UID{"web": "5b6c1a2e-0000-4000-8000-000000000001", "db": "5b6c1a2e-0000-4000-8000-000000000002"} {
		vmi, pod := connectorVMI(), &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		vmi.Name, vmi.UID, pod.UID = name, uid, types.UID("pod-"+name)
		h, err := connector.Connect(ctx, vmi, pod)
		if err != nil {
			fmt.Println(err)
			return
		}
		d, err := convert.Convert(vmi, connectorFacts())
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
	// Unordered output:
	// the Pod of default/web does not run: not ready true
	// 1 default_web <nil>
	// 1 default_db <nil>
}

// A user's request for a running VMI, such as to pause it, goes through the agent, which serializes it with its own passes.
func ExampleReconciler_Request() {
	agent := &domainctrl.Reconciler{NodeName: "node-1"} // not started yet
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := agent.Request(ctx, types.NamespacedName{Namespace: "default", Name: "web"}, plan.Request{Verb: plan.RequestPause})
	switch {
	case err == nil:
		fmt.Println("paused")
	case errors.Is(err, domain.ErrInvalidState):
		fmt.Println("not now:", err)
	case errors.Is(err, domain.ErrTimeout):
		fmt.Println("it may still be paused")
	}
	// Output: not now: domainctrl: pause default/web: the controller has not started: invalid state for the operation
}
