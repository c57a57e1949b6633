// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
)

// held is what a Pod holds for a VMI, and what its container may open.
type held struct {
	workspace.Volumes
	retained []string
	allowed  [][]string // the volumes of each domain
	err      error
}

func (h *held) Retain(_ context.Context, _ types.UID, names []string) error {
	h.retained = slices.Compact(slices.Sorted(slices.Values(names)))
	return h.err
}

func (h *held) Allow(_ context.Context, _ *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error {
	h.allowed = nil
	for _, d := range domains {
		h.allowed = append(h.allowed, slices.Sorted(slices.Values(status.VolumesOf(d))))
	}
	return h.err
}

// withDisks is a domain with a disk for each of the volumes.
func withDisks(volumes ...string) *libvirtxml.Domain {
	d := &libvirtxml.Domain{Type: "kvm", Name: domain.Name("ns", "guest"), Devices: &libvirtxml.DomainDeviceList{}}
	for i, v := range volumes {
		d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
			Alias: &libvirtxml.DomainAlias{Name: domain.AliasPrefix + v}, Target: &libvirtxml.DomainDiskTarget{Dev: fmt.Sprintf("sd%c", 'a'+i), Bus: "scsi"},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/" + v}},
		})
	}
	return d
}

// wanting is a VMI of node-a with disks on those volumes.
func wanting(t *testing.T, volumes ...string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "0b6f3f0e-5d1c-4a53-9d5e-3a1f8f9f4c11"}, Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
	size := resource.MustParse("64Mi")
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &size}
	for _, name := range volumes {
		file := &v1.HostDisk{Path: filepath.Join(t.TempDir(), "disk.img"), Type: v1.HostDiskExistsOrCreate, Capacity: resource.MustParse("1Mi")}
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostDisk: file}})
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}})
	}
	if err := handoff.Put(vmi, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"}); err != nil {
		t.Fatal(err)
	}
	return vmi
}

// agentOf is an agent on node-a with that domain, if it is not nil.
func agentOf(t *testing.T, h *held, live *libvirtxml.Domain) *Reconciler {
	t.Helper()
	root, err := os.MkdirTemp("", "vl") // a test's own folder has too long a path for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	hv := memory.New("node-a")
	if live != nil {
		if err := hv.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: live.Name, Definition: live}); err != nil {
			t.Fatal(err)
		}
	}
	r := &Reconciler{
		NodeName: "node-a", Hypervisor: hv, Informer: &informer.Informer{}, Clock: clock.RealClock{}, CallTimeout: time.Minute,
		Workspace: &workspace.Workspace{Root: root, Volumes: h, Devices: h, AllowEmulation: func(context.Context) (bool, error) { return true, nil },
			Settings: func(context.Context) (*v1.KubeVirt, error) {
				kv := &v1.KubeVirt{}
				kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: []string{"HostDisk"}}
				return kv, nil
			}},
	}
	guest := wanting(t)
	r.Caches = &Caches{Pods: launchers{Cache: &informertest.FakeInformers{}, pod: corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: guest.Namespace, Name: "virt-launcher-guest",
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(guest.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(guest, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec: corev1.PodSpec{NodeName: "node-a"},
	}}}
	r.migrations, r.agents = newMigrations(r.Clock, time.Minute), newAgents(hv, r.Informer)
	return r
}

// launchers is a cache with the Pod of a guest.
type launchers struct {
	cache.Cache
	pod corev1.Pod
}

func (l launchers) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.PodList).Items = []corev1.Pod{l.pod}
	return nil
}

func TestVolumes_RetainWantedAndUsed(t *testing.T) {
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	for name, tt := range map[string]struct {
		live     *libvirtxml.Domain
		want     []string
		allowed  [][]string
		volumes  []string
		obstacle bool
	}{
		"before the start":                  {nil, []string{"data", "root"}, [][]string{nil, {"data", "root"}}, []string{"root", "data"}, false},
		"one is to be plugged":              {withDisks("root"), []string{"data", "root"}, [][]string{{"root"}, {"data", "root"}}, []string{"root", "data"}, false},
		"S6: one is not unplugged yet":      {withDisks("root", "data"), []string{"data", "root"}, [][]string{{"data", "root"}, {"root"}}, []string{"root"}, false},
		"S6: the guest has released it":     {withDisks("root"), []string{"root"}, [][]string{{"root"}, {"root"}}, []string{"root"}, false},
		"an unfit object changes no device": {withDisks("root"), []string{"..", "root"}, nil, []string{".."}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &held{}
			s, err := agentOf(t, h, tt.live).snapshot(t.Context(), key, wanting(t, tt.volumes...))
			if err != nil || (s.PrepareError != nil) != tt.obstacle {
				t.Fatalf("%v; obstacle %v", err, s.PrepareError)
			}
			if !slices.Equal(h.retained, tt.want) {
				t.Errorf("retained are %q, want %q", h.retained, tt.want)
			}
			if !slices.EqualFunc(h.allowed, tt.allowed, slices.Equal) {
				t.Errorf("devices of %q are allowed, want of %q", h.allowed, tt.allowed)
			}
		})
	}
}

func TestVolumes_RetainFails(t *testing.T) {
	h := &held{err: errors.New("busy")}
	_, err := agentOf(t, h, nil).snapshot(t.Context(), types.NamespacedName{Namespace: "ns", Name: "guest"}, wanting(t))
	if !errors.Is(err, h.err) {
		t.Errorf("the pass goes on: %v", err)
	}
}

func TestDevices_NotReady(t *testing.T) {
	h := &held{err: domain.ErrNotReady}
	r := agentOf(t, h, nil)
	r.Workspace.Volumes = nil
	s, err := r.snapshot(t.Context(), types.NamespacedName{Namespace: "ns", Name: "guest"}, wanting(t))
	if err != nil || !errors.Is(s.PrepareError, domain.ErrNotReady) {
		t.Errorf("%v; obstacle %v, want the error of the devices", err, s.PrepareError)
	}
}

// TestStart_ContainersJustStarted: while the containers of its Pod start, a start that waits for what they provide is neither stored
// nor an event; once that takes long it is both.
func TestStart_ContainersJustStarted(t *testing.T) {
	for name, tt := range map[string]struct {
		since   time.Duration
		reports bool
	}{"just now": {0, false}, "long ago": {time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			vmi := wanting(t, "root")
			vmi.Status.Phase = v1.Scheduled
			if err := handoff.Put(vmi, handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a"}); err != nil {
				t.Fatal(err)
			}
			notes := make(chan string, 1)
			r := agentOf(t, &held{err: domain.ErrNotReady}, nil)
			r.Workspace.Volumes, r.Recorder, r.checksums = nil, noted(notes), newChecksums(r.Workspace, r.Clock)
			pod := r.Caches.Pods.(launchers).pod
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: launcherContainer, State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(r.Clock.Now().Add(-tt.since))}}}}
			r.Caches.Pods = launchers{Cache: &informertest.FakeInformers{}, pod: pod}
			scheme := runtime.NewScheme()
			if err := errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&pod, vmi).Build()
			r.Client, r.APIReader = c, c
			result, err := r.pass(t.Context(), client.ObjectKeyFromObject(vmi), observe(vmi, time.Time{}))
			if err != nil || result.RequeueAfter == 0 {
				t.Errorf("%+v, %v; want it to look again", result, err)
			}
			stored := &v1.VirtualMachineInstance{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), stored); err != nil {
				t.Fatal(err)
			}
			if said := len(notes) > 0; said != tt.reports || (outOfSync(stored) != "") != tt.reports {
				t.Errorf("event: %t, condition %q; want both: %t", said, outOfSync(stored), tt.reports)
			}
		})
	}
}

// noted is a recorder that keeps the reasons of events.
type noted chan string

func (n noted) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) { n <- reason }
