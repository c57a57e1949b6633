// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
)

// exampleSnapshot is what node-a sees of a VMI that the scheduler has just assigned to it: the
// object, its launcher Pod, and the domain that it wants.
func exampleSnapshot() (plan.Snapshot, error) {
	size := resource.MustParse("64Mi")
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001", Labels: map[string]string{v1.NodeNameLabel: "node-a"}},
		Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &size}}},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled, NodeName: "node-a"},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "virt-launcher-web", Labels: map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec:   corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	facts := convert.Facts{Dir: "/var/lib/virtloom/guests/web"}
	desired, err := convert.Convert(vmi, facts)
	return plan.Snapshot{Node: "node-a", VMI: vmi, Pods: []*corev1.Pod{pod}, Desired: desired, Facts: facts}, err
}

// exampleNode runs one VMI, in memory, as the controller of a node does.
type exampleNode struct {
	*memory.Hypervisor
	plan.Snapshot
}

// observe reads the domain.
func (n *exampleNode) observe() error {
	state, err := n.Get(context.Background(), n.Desired.Name)
	if n.Snapshot.State = nil; err == nil {
		n.Snapshot.State = &state
	}
	if errors.Is(err, domain.ErrNotFound) {
		return nil
	}
	return err
}

// apply carries out the actions of a plan.
func (n *exampleNode) apply(p plan.Plan) error {
	for _, a := range p.Actions {
		fmt.Println(" ", a)
		if a.Verb != action.Apply {
			continue // files of the VMI and tunnels of migrations are not the hypervisor's
		}
		if err := n.Apply(context.Background(), a.Operation); err != nil {
			return err
		}
	}
	return n.observe()
}

// pass decides once: it stores the object, emits the events, and carries out the actions.
func (n *exampleNode) pass(now time.Time) error {
	if err := n.observe(); err != nil {
		return err
	}
	p, err := plan.Decide(n.Snapshot, now)
	if err != nil {
		return err
	}
	n.VMI = p.VMI // stored under its resourceVersion; if that fails the pass ends here
	fmt.Printf("%s: phase %s\n", p.Role, n.VMI.Status.Phase)
	for _, e := range p.Events {
		printEvent(e)
	}
	return n.apply(p)
}

func printEvent(e plan.Event) {
	fmt.Printf("  event %s: %s\n", e.Reason, e.Message)
}

// startedNode returns a node that has started a VMI which it was offered, and has noticed that.
func startedNode(now time.Time) (*exampleNode, error) {
	s, err := exampleSnapshot()
	if err != nil {
		return nil, err
	}
	n := &exampleNode{memory.New(s.Node), s}
	return n, errors.Join(n.pass(now), n.pass(now))
}

// A node starts a VMI that it was offered, reports that it runs, and then that it has failed.
func ExampleDecide() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	n, err := startedNode(now)
	if err != nil {
		fmt.Println(err)
		return
	}
	n.Crash(n.Desired.Name)
	fmt.Println(n.pass(now))
	// Output:
	// Offered: phase Scheduled
	//   Start shop_web (the VMI is assigned to this node)
	// Holder: phase Running
	// Holder: phase Failed
	//   event GuestCrashed: The VirtualMachineInstance crashed.
	//   Undefine shop_web (the domain has ended)
	//   Cleanup (the domain has ended)
	// <nil>
}

// A pause lasts until the user ends it: the passes in between keep it, and reflect it in the
// status.
func ExampleDecideRequest() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	n, err := startedNode(now)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, verb := range []plan.RequestVerb{
		plan.RequestPause, plan.RequestSoftReboot, plan.RequestUnpause, plan.RequestReset, plan.RequestFreeze,
	} {
		fmt.Println("request:", verb)
		p, refused := plan.DecideRequest(n.Snapshot, plan.Request{Verb: verb}, now)
		if refused != nil {
			fmt.Println(" ", refused)
			continue
		}
		err = errors.Join(err, n.apply(p), n.pass(now))
		for _, c := range n.VMI.Status.Conditions {
			if c.Reason == status.ReasonPausedByUser {
				fmt.Println("  condition", c.Type, c.Status)
			}
		}
	}
	fmt.Println(err)
	// Output:
	// Offered: phase Scheduled
	//   Start shop_web (the VMI is assigned to this node)
	// Holder: phase Running
	// request: pause
	//   SetMetadata shop_web (a user has requested a pause)
	//   Suspend shop_web (a user has requested a pause)
	// Holder: phase Running
	//   condition Paused True
	// request: softreboot
	//   VirtualMachineInstance shop/web: softreboot: the guest cannot react: Paused: invalid state for the operation (unpause the VMI first, or reset it)
	// request: unpause
	//   SetMetadata shop_web (a user has requested an unpause)
	//   Resume shop_web (a user has requested an unpause)
	// Holder: phase Running
	// request: reset
	//   Reset shop_web (a user has requested a reset)
	// Holder: phase Running
	// request: freeze
	//   VirtualMachineInstance shop/web: freeze: guest agent is not connected: guest agent does not answer (install and start qemu-guest-agent in the guest)
	// <nil>
}

// A test of live migrations crashes the agent at each step; those of the source come first.
func ExampleMigrationSteps() {
	for _, step := range plan.MigrationSteps() {
		if side, point := path.Split(string(step)); side == "source/" {
			fmt.Println(point)
		}
	}
	// Output:
	// asked
	// begun
	// dialled
	// moving
	// disrupting
	// returned
	// reverted
	// left
}
