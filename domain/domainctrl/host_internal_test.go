// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/workspace"
)

// described is a hypervisor with a description of its own, and the order of calls.
type described struct {
	*memory.Hypervisor
	is    domain.Host
	calls *[]string
}

func (d described) Host(context.Context) (domain.Host, error) {
	*d.calls = append(*d.calls, "host of "+d.is.Name)
	return d.is, nil
}

// givenPod is a Pod whose devices are given to its hypervisor.
type givenPod struct {
	workspace.Pods
	calls *[]string
	err   error
}

func (p givenPod) OwnDevices(context.Context, *v1.VirtualMachineInstance) error {
	*p.calls = append(*p.calls, "devices")
	return p.err
}

func (givenPod) Folder(context.Context, *v1.VirtualMachineInstance, string) (*os.File, error) {
	return nil, domain.ErrNotReady
}

func TestHost_OfLauncher(t *testing.T) {
	var calls []string
	node := described{memory.New("node"), domain.Host{Name: "node", KVM: true}, &calls}
	pod := described{memory.New("pod"), domain.Host{Name: "pod"}, &calls}
	f := &fleet.Fleet{Node: node}
	t.Cleanup(func() { _ = f.Close() })
	f.Join(t.Context(), domain.Name("ns", "guest"), pod)
	name := domain.Name("ns", "guest")
	r := &Reconciler{NodeName: "node-a", Hypervisor: f, CallTimeout: time.Minute}
	if h, err := (preparer{r}).host(t.Context(), name); err != nil || h.Name != "node" {
		t.Errorf("one hypervisor for all: %+v, %v", h, err)
	}
	r.Connector = failing{nil}
	if h, err := (preparer{r}).host(t.Context(), name); err != nil || h.Name != "pod" || h.KVM {
		t.Errorf("one for each: %+v, %v", h, err)
	}
	if h, err := (preparer{r}).host(t.Context(), "ns_other"); !errors.Is(err, domain.ErrNoHypervisor) {
		t.Errorf("one that has not joined: %+v, %v", h, err)
	}
	r.Hypervisor = node
	if h, err := (preparer{r}).host(t.Context(), name); !errors.Is(err, domain.ErrUnsupported) {
		t.Errorf("a hypervisor that does not tell them apart: %+v, %v", h, err)
	}
	if err := r.complete(); !errors.Is(err, errOneHost) {
		t.Errorf("%v", err)
	}
	r.Connector = nil
	if err := r.complete(); errors.Is(err, errOneHost) {
		t.Errorf("%v", err)
	}
}

// TestFiles_DevicesBeforeHost: the hypervisor is asked what it can do once it has its devices, and
// not at all without them.
func TestFiles_DevicesBeforeHost(t *testing.T) {
	var calls []string
	vmi := wanting(t)
	f := &fleet.Fleet{}
	t.Cleanup(func() { _ = f.Close() })
	f.Join(t.Context(), domain.Name("ns", "guest"), described{memory.New("pod"), domain.Host{Name: "pod", KVM: true, Arch: "x86_64"}, &calls})
	for _, refused := range []error{domain.ErrNotReady, nil} {
		calls = nil
		r := &Reconciler{
			NodeName: "node-a", Hypervisor: f, Connector: failing{nil}, CallTimeout: time.Minute,
			Workspace: &workspace.Workspace{Root: t.TempDir(), Pods: givenPod{calls: &calls, err: refused}},
		}
		s := plan.Snapshot{Node: "node-a", VMI: vmi}
		err := preparer{r}.files(t.Context(), types.NamespacedName{Namespace: "ns", Name: "guest"}, observed{vmi: vmi}, &s, action.Action{})
		if err != nil || !errors.Is(s.PrepareError, domain.ErrNotReady) {
			t.Errorf("%v, %v", err, s.PrepareError)
		}
		if want := map[bool]int{true: 1, false: 2}[refused != nil]; len(calls) != want || calls[0] != "devices" {
			t.Errorf("calls %q", calls)
		}
	}
}
