// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// askTimeout bounds a request to a guest that may end meanwhile.
const askTimeout = 5 * time.Second

// ends are the ways in which a guest ends, and the phase of its VMI then.
var ends = []struct {
	name  string
	end   func(*scene)
	phase v1.VirtualMachineInstancePhase
}{
	{"shut down from inside", (*scene).powerOff, v1.Succeeded},
	{"QEMU killed", (*scene).killQEMU, v1.Failed},
	{"Pod deleted", (*scene).deletePod, v1.Succeeded},
}

// TestVM_RunStrategies: whether a guest comes back after it was shut down from inside, its QEMU was killed or its Pod was deleted is up
// to the run strategy. No VMI is started but those.
func TestVM_RunStrategies(t *testing.T) {
	nightly(t)
	cluster(t)
	for strategy, behaves := range map[v1.VirtualMachineRunStrategy]func(machine){
		v1.RunStrategyAlways: machine.comesBack, v1.RunStrategyRerunOnFailure: machine.comesBackFailed,
		v1.RunStrategyManual: machine.waitsForRequests, v1.RunStrategyOnce: machine.keepsItsVMI, v1.RunStrategyHalted: machine.staysHalted,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			name := "runs-" + map[v1.VirtualMachineRunStrategy]string{v1.RunStrategyAlways: "always", v1.RunStrategyRerunOnFailure: "rerun",
				v1.RunStrategyManual: "manual", v1.RunStrategyOnce: "once", v1.RunStrategyHalted: "halted"}[strategy]
			behaves(newMachine(t, name, strategy))
		})
	}
}

// comesBack (Always): whatever ended the guest, there is another one.
func (m machine) comesBack() {
	s := m.boots(nil)
	for _, e := range ends {
		e.end(s)
		s = m.boots(s)
	}
	m.ran(1 + len(ends))
}

// comesBackFailed (RerunOnFailure): a guest that ended badly comes back, another one only if that is requested.
func (m machine) comesBackFailed() {
	s, runs := m.boots(nil), 1
	for _, e := range ends {
		e.end(s)
		if e.phase == v1.Succeeded {
			m.gone(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: m.vm.Name, Namespace: namespace}})
			m.awaitStatus(v1.VirtualMachineStatusStopped)
			m.ran(runs)
			m.request(v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
		}
		s = m.boots(s)
		runs++
	}
	m.ran(runs)
}

// waitsForRequests (Manual): there is no guest before the first request, and one that has ended stays so until a request.
func (m machine) waitsForRequests() {
	m.awaitStatus(v1.VirtualMachineStatusStopped)
	m.ran(0)
	m.request(v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
	s := m.boots(nil)
	for i, e := range ends {
		e.end(s)
		m.keeps(s, e.phase)
		m.ran(i + 1)
		m.request(v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &s.vmi.UID}, v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
		s = m.boots(s)
	}
	m.ran(1 + len(ends))
}

// keepsItsVMI (Once): a guest that has ended stays so. Only without VMI there is another one.
func (m machine) keepsItsVMI() {
	s := m.boots(nil)
	for i, e := range ends {
		e.end(s)
		m.keeps(s, e.phase)
		m.ran(i + 1)
		must(m.T, s.c.Client.Delete(m.Context(), s.vmi.DeepCopy(), client.Preconditions{UID: &s.vmi.UID}))
		s = m.boots(s)
	}
	m.ran(1 + len(ends))
}

// staysHalted (Halted): there is no guest. A request makes the strategy Always; Halted again, its guest ends.
func (m machine) staysHalted() {
	m.awaitStatus(v1.VirtualMachineStatusStopped)
	m.ran(0)
	m.request(v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
	s := m.boots(nil)
	if got := m.vm.Spec.RunStrategy; got == nil || *got != v1.RunStrategyAlways {
		m.Errorf("run strategy %v once it was started, want Always", got)
	}
	m.change(false, func() { m.vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
	m.gone(s.vmi)
	m.awaitStatus(v1.VirtualMachineStatusStopped)
	m.ran(1)
}

// newMachine creates a VM of a guest, and removes it when the test is over.
func newMachine(t *testing.T, name string, strategy v1.VirtualMachineRunStrategy, change ...func(*v1.VirtualMachineInstance)) machine {
	t.Helper()
	guest := newGuest(name, change...)
	m := machine{T: t, seen: &incarnations{}, vm: &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: v1.VirtualMachineSpec{
		RunStrategy: &strategy, Template: &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: guest.Labels}, Spec: guest.Spec},
	}}}
	c := cluster(t)
	go m.seen.follow(t.Context(), c.Client, name)
	must(t, c.Client.Create(t.Context(), m.vm))
	t.Cleanup(func() {
		must(t, client.IgnoreNotFound(c.Client.Delete(context.Background(), m.vm.DeepCopy())))
		must(t, refcluster.Await(context.Background(), patience, "nothing to be left of "+name, func(ctx context.Context) error {
			for _, o := range []client.Object{&v1.VirtualMachine{}, &v1.VirtualMachineInstance{}} {
				if err := c.Client.Get(ctx, client.ObjectKeyFromObject(m.vm), o); !apierrors.IsNotFound(err) {
					return fmt.Errorf("%T: %w", o, err)
				}
			}
			return nil
		}))
	})
	return m
}

// boots waits for another VMI than the last one, until its guest beats.
func (m machine) boots(last *scene) *scene {
	m.Helper()
	but := types.UID("")
	if last != nil {
		but = last.vmi.UID
	}
	vmi := m.awaitVMI(but)
	s := &scene{T: m.T, c: shared.cluster, key: client.ObjectKeyFromObject(vmi), vmi: vmi, con: shared.cluster.Follow(m.Context(), vmi)}
	m.Cleanup(func() {
		if m.Failed() {
			m.Logf("%s", s.c.Describe(context.Background(), s.key))
		}
	})
	s.awaitRunning("")
	s.beats("", 1)
	m.awaitStatus(v1.VirtualMachineStatusRunning)
	return s
}

// keeps waits until the VMI has ended in that phase and the VM is stopped, and has it still.
func (m machine) keeps(s *scene, phase v1.VirtualMachineInstancePhase) {
	m.Helper()
	s.awaitFinal(phase)
	m.awaitStatus(v1.VirtualMachineStatusStopped)
	if vmi := m.awaitVMI(""); vmi.UID != s.vmi.UID || vmi.DeletionTimestamp != nil {
		m.Errorf("the VMI %s was replaced by %s, or is being deleted", s.vmi.UID, vmi.UID)
	}
}

func (m machine) request(changes ...v1.VirtualMachineStateChangeRequest) {
	m.Helper()
	m.change(true, func() { m.vm.Status.StateChangeRequests = changes })
}

// ran checks how many VMIs the VM has had.
func (m machine) ran(want int) {
	m.Helper()
	if uids := m.seen.all(); len(uids) != want {
		m.Errorf("there were VMIs %q, want %d", uids, want)
	}
}

// incarnations are the VMIs that a VM has had.
type incarnations struct {
	mu   sync.Mutex
	uids []types.UID
}

// follow notes the VMIs of a name until ctx ends.
func (i *incarnations) follow(ctx context.Context, c client.WithWatch, name string) {
	for ctx.Err() == nil {
		w, err := c.Watch(ctx, &v1.VirtualMachineInstanceList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
		if err != nil {
			continue
		}
		for e := range w.ResultChan() {
			if vmi, ok := e.Object.(*v1.VirtualMachineInstance); ok {
				i.note(vmi.UID)
			}
		}
	}
}

func (i *incarnations) note(uid types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !slices.Contains(i.uids, uid) {
		i.uids = append(i.uids, uid)
	}
}

func (i *incarnations) all() []types.UID {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.uids)
}

// powerOff shuts the guest down from inside.
func (s *scene) powerOff() {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s.T, err)
	must(s.T, refcluster.Await(s.Context(), patience, "the guest to take its end", func(ctx context.Context) error {
		vmi := &v1.VirtualMachineInstance{}
		err := s.c.Client.Get(ctx, s.key, vmi)
		if client.IgnoreNotFound(err) == nil && (err != nil || vmi.UID != s.vmi.UID || vmi.IsFinal()) {
			return nil
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		said, asked := s.c.Node(s.vmi.Status.NodeName).Command(asking, "busybox", "wget", "-q", "-O", "-",
			fmt.Sprintf("http://%s:%d/?poweroff", pods[0].Status.PodIP, port)).CombinedOutput()
		return fmt.Errorf("it is %s; asked, it says %q, %w", vmi.Status.Phase, said, errors.Join(asked, err))
	}))
}

// deletePod deletes the launcher's Pod.
func (s *scene) deletePod() {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s.T, err)
	if out, err := kubectl("-n", namespace, "delete", "pod", pods[0].Name, "--wait=false"); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
}
