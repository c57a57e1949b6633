// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// changing is a hypervisor that cannot start domains, with a different error text each time.
type changing struct {
	*memory.Hypervisor
	clock *clocktesting.FakeClock
	tries int
}

func (c *changing) Apply(ctx context.Context, op domain.Operation) error {
	if op.Verb != domain.Start {
		return c.Hypervisor.Apply(ctx, op)
	}
	c.tries++
	return fmt.Errorf("%s: QEMU (pid %d): Failed to get \"write\" lock at 0x%x: is another process using the image?", c.clock.Now().Format(time.RFC3339Nano), 1000+c.tries, c.tries)
}

// countedEvents records events.
type countedEvents struct{ reported []string }

func (e *countedEvents) Eventf(_, _ runtime.Object, _, reason, action, note string, args ...any) {
	e.reported = append(e.reported, reason+" "+action+": "+fmt.Sprintf(note, args...))
}

// TestFailedTask_TextChangesEachTime has passes that follow each other five times a second for an
// hour, as a status that is written each time would cause them.
func TestFailedTask_TextChangesEachTime(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1700000000, 0))
	hv, recorder := &changing{Hypervisor: memory.New("node-a"), clock: clock}, &countedEvents{}
	r := &Reconciler{NodeName: "node-a", Hypervisor: hv, Clock: clock, CallTimeout: time.Minute, Recorder: recorder}
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}}
	vmi.Namespace, vmi.Name, vmi.UID = key.Namespace, key.Name, "uid-1"
	lease := handoff.Lease{}
	for _, e := range []handoff.Event{{Kind: handoff.Offer, Node: "node-a"}, {Kind: handoff.Accept, Node: "node-a"}} {
		e.Epoch = lease.Epoch
		var err error
		if lease, _, err = handoff.Step(lease, e, clock.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := handoff.Put(vmi, lease); err != nil {
		t.Fatal(err)
	}
	command, _ := lease.Command(handoff.CommandStart)
	start := action.Action{Verb: action.Apply, Command: command, Operation: domain.Operation{
		Verb: domain.Start, Domain: "ns_guest", Definition: &libvirtxml.Domain{Name: "ns_guest"},
	}}
	pod := launcherPod(corev1.PodRunning, corev1.ContainerState{}, func(p *corev1.Pod) {
		p.Labels = map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)}
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}
	})
	writes, until := 0, clock.Now().Add(time.Hour)
	for clock.Now().Before(until) {
		// The object that the previous pass has stored, with its failed tasks.
		next, err := plan.Decide(plan.Snapshot{
			Node: "node-a", VMI: vmi, Pods: []*corev1.Pod{pod}, Failures: r.failures.of(key), Desired: start.Operation.Definition,
		}, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if changed(vmi, next.VMI) {
			writes++
			actor{r}.recordEvents(vmi, next.VMI)
			vmi = next.VMI
		}
		next.Actions = []action.Action{start}
		failed, tried := actor{r}.act(t.Context(), key, pass{observed: observe(vmi, clock.Now()), plan: next})
		r.failures.note(key, failed, clock.Now())
		if len(failed) != 1 {
			t.Fatalf("failed: %v", failed)
		}
		if after := r.failed(t.Context(), key, plan.Plan{}, causes(failed)).RequeueAfter; tried && after < failedRetry || after <= 0 || after > retryMost {
			t.Fatalf("looks again after %s", after)
		}
		clock.Step(200 * time.Millisecond)
	}
	// One try after 0, 1, 3, 7, 15, 31 and 63 s, and then each minute.
	if hv.tries < 60 || hv.tries > 66 {
		t.Errorf("%d tries in an hour", hv.tries)
	}
	if len(recorder.reported) != 1 {
		t.Errorf("%d events: %q", len(recorder.reported), recorder.reported)
	}
	if writes != 1 {
		t.Errorf("%d writes of the status for one cause", writes)
	}
}

// TestFailedTask_Retry: the pause is that of the task, which success and another command end.
func TestFailedTask_Retry(t *testing.T) {
	var known failures
	key, now := types.NamespacedName{Namespace: "ns", Name: "guest"}, time.Unix(1700000000, 0)
	task := func(v domain.Verb, epoch uint64) action.Action {
		return action.Action{Verb: action.Apply, Operation: domain.Operation{Verb: v, Domain: "ns_guest"}, Command: handoff.Command{Epoch: epoch}}
	}
	fail := func(t action.Action, why string) (action.Failure, bool) {
		return known.failed(key, action.Failure{Action: t, Err: errors.New(why)}, now)
	}
	if _, news := fail(task(domain.Start, 1), "no memory left: 17 MiB"); !news {
		t.Error("the first failure is not reported")
	}
	if reported, news := fail(task(domain.Start, 1), "no memory left: 18 MiB"); news || reported.Err.Error() != "no memory left: 17 MiB" {
		t.Errorf("the same cause is reported as %v (%t)", reported, news)
	}
	if reported, news := fail(task(domain.Start, 1), "no such image"); !news || reported.Err.Error() != "no such image" {
		t.Errorf("another cause is reported as %v (%t)", reported, news)
	}
	if known.waits(key, task(domain.Start, 1), now.Add(3*time.Second)) == nil || known.waits(key, task(domain.Start, 1), now.Add(4*time.Second)) != nil {
		t.Error("the third try does not wait 4 s")
	}
	if known.waits(key, task(domain.Start, 2), now) != nil || known.waits(key, task(domain.Destroy, 1), now) != nil {
		t.Error("another command, or task, waits as well")
	}
	for range 20 {
		fail(task(domain.Destroy, 1), "busy")
	}
	if known.waits(key, task(domain.Destroy, 1), now.Add(retryUrgent)) != nil {
		t.Error("a guest that shall end waits for long")
	}
	known.done(key, task(domain.Start, 1))
	if known.waits(key, task(domain.Start, 1), now) != nil {
		t.Error("a task that was carried out waits")
	}
	known.note(key, nil, now.Add(time.Hour))
	if len(known.known) > 0 {
		t.Errorf("it is remembered for ever: %v", known.known)
	}
}
