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
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/handoff"
)

// changing is a hypervisor that cannot start guests, and says why in other words each time.
type changing struct {
	*domaintest.Hypervisor
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

// events counts what is told.
type countedEvents struct{ told []string }

func (e *countedEvents) Eventf(_, _ runtime.Object, _, reason, action, note string, args ...any) {
	e.told = append(e.told, reason+" "+action+": "+fmt.Sprintf(note, args...))
}

// TestFailedTask_TextChangesEachTime has passes that follow each other five times a second
// for an hour, as a status that is written each time would have them.
func TestFailedTask_TextChangesEachTime(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1700000000, 0))
	hv, recorder := &changing{Hypervisor: domaintest.New("node-a"), clock: clock}, &countedEvents{}
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
	start := domain.Task{Verb: domain.TaskApply, Command: command, Operation: domain.Operation{
		Verb: domain.Start, Domain: "ns_guest", Definition: &libvirtxml.Domain{Name: "ns_guest"},
	}}
	pod := launcherPod(corev1.PodRunning, corev1.ContainerState{}, func(p *corev1.Pod) {
		p.Labels = map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)}
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}
	})
	writes, until := 0, clock.Now().Add(time.Hour)
	for clock.Now().Before(until) {
		// What the pass before has stored, with what it knows of the tasks that failed.
		plan, err := domain.Decide(domain.Sight{
			Node: "node-a", VMI: vmi, Pods: []*corev1.Pod{pod}, Troubles: r.troubles.of(key), Desired: start.Operation.Definition,
		}, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		if changed(vmi, plan.VMI) {
			writes++
			r.tell(vmi, plan.VMI)
			vmi = plan.VMI
		}
		plan.Tasks = []domain.Task{start}
		failed, tried := r.act(t.Context(), key, view{word: word{vmi: vmi, asked: clock.Now()}, plan: plan})
		r.troubles.note(key, failed, clock.Now())
		if len(failed) != 1 {
			t.Fatalf("failed: %v", failed)
		}
		if next := r.failed(t.Context(), key, domain.Plan{}, causes(failed)).RequeueAfter; tried && next < failedRetry || next <= 0 || next > retryMost {
			t.Fatalf("looks again after %s", next)
		}
		clock.Step(200 * time.Millisecond)
	}
	// One try after 0, 1, 3, 7, 15, 31 and 63 s, and then each minute.
	if hv.tries < 60 || hv.tries > 66 {
		t.Errorf("%d tries in an hour", hv.tries)
	}
	if len(recorder.told) != 1 {
		t.Errorf("%d events: %q", len(recorder.told), recorder.told)
	}
	if writes != 1 {
		t.Errorf("%d writes of the status for one cause", writes)
	}
}

// TestFailedTask_Retry: the pause is that of the task, which success and another command end.
func TestFailedTask_Retry(t *testing.T) {
	var known troubles
	key, now := types.NamespacedName{Namespace: "ns", Name: "guest"}, time.Unix(1700000000, 0)
	task := func(v domain.Verb, epoch uint64) domain.Task {
		return domain.Task{Verb: domain.TaskApply, Operation: domain.Operation{Verb: v, Domain: "ns_guest"}, Command: handoff.Command{Epoch: epoch}}
	}
	fail := func(t domain.Task, why string) (domain.Trouble, bool) {
		return known.failed(key, domain.Trouble{Task: t, Err: errors.New(why)}, now)
	}
	if _, news := fail(task(domain.Start, 1), "no memory left: 17 MiB"); !news {
		t.Error("the first failure is not told")
	}
	if told, news := fail(task(domain.Start, 1), "no memory left: 18 MiB"); news || told.Err.Error() != "no memory left: 17 MiB" {
		t.Errorf("the same cause is told as %v (%t)", told, news)
	}
	if told, news := fail(task(domain.Start, 1), "no such image"); !news || told.Err.Error() != "no such image" {
		t.Errorf("another cause is told as %v (%t)", told, news)
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
