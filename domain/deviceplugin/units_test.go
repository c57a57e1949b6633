// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/virtloom/virtloom/domain/deviceplugin"
	"github.com/virtloom/virtloom/internal/fakekubelet"
)

const gpu = "nvidia.com/GA102"

// card is a PCI device with that IOMMU group.
func card(group int) deviceplugin.Unit {
	return deviceplugin.Unit{
		ID: fmt.Sprint(group), Nodes: []string{"/dev/vfio/vfio", fmt.Sprintf("/dev/vfio/%d", group)},
		Variable: "PCI_RESOURCE_NVIDIA_COM_GA102", Values: []string{fmt.Sprintf("0000:%02x:00.0", group)},
	}
}

// vfio makes device nodes below /dev/vfio.
func vfio(t *testing.T, root string, names ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "dev/vfio"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		device(t, filepath.Join(root, "dev/vfio", n))
	}
}

func allocation(ids ...string) *api.AllocateRequest {
	return &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}}
}

func TestUnits_Allocate(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	vfio(t, root, "vfio", "7", "9")
	k := fakekubelet.New(t, folder)
	first, second := card(7), card(9)
	second.Cell = ptr.To(int64(1))
	second.Values = append(second.Values, "0000:09:00.1")
	start(t, &deviceplugin.Plugin{Folder: folder, Root: root, Device: deviceplugin.Device{Name: gpu, Units: []deviceplugin.Unit{first, second}, Permissions: "mrw"}})
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Healthy, "9": api.Healthy})
	want := []*api.Device{{ID: "7", Health: api.Healthy}, {ID: "9", Health: api.Healthy, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}}}
	list, _ := k.List(gpu)
	if diff := cmp.Diff(want, list, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got, err := k.Plugin(gpu).Allocate(t.Context(), allocation("9", "7"))
	if err != nil {
		t.Fatal(err)
	}
	spec := func(path string) *api.DeviceSpec {
		return &api.DeviceSpec{ContainerPath: path, HostPath: path, Permissions: "mrw"}
	}
	allocated := &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{
		Envs:    map[string]string{"PCI_RESOURCE_NVIDIA_COM_GA102": "0000:07:00.0,0000:09:00.0,0000:09:00.1"},
		Devices: []*api.DeviceSpec{spec("/dev/vfio/7"), spec("/dev/vfio/9"), spec("/dev/vfio/vfio")},
	}}}
	if diff := cmp.Diff(allocated, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, ids := range [][]string{{"8"}, {"7", "7"}, {""}, {"7", "../9"}, {}} {
		if _, err := k.Plugin(gpu).Allocate(t.Context(), allocation(ids...)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", ids, err)
		}
	}
}

// TestUnits_Health: each device has its own, by its node and by whether it is found.
func TestUnits_Health(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	vfio(t, root, "vfio", "7", "9")
	k := fakekubelet.New(t, folder)
	p := &deviceplugin.Plugin{Folder: folder, Root: root, Device: deviceplugin.Device{Name: gpu, Units: []deviceplugin.Unit{card(7), card(9)}}}
	start(t, p)
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Healthy, "9": api.Healthy})
	if err := os.Remove(filepath.Join(root, "dev/vfio/9")); err != nil {
		t.Fatal(err)
	}
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Healthy, "9": api.Unhealthy})
	if _, err := k.Plugin(gpu).Allocate(t.Context(), allocation("9")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a missing device was allocated: %v", err)
	}
	if _, err := k.Plugin(gpu).Allocate(t.Context(), allocation("7")); err != nil {
		t.Errorf("the other one: %v", err)
	}
	vfio(t, root, "9", "11")
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Healthy, "9": api.Healthy})

	// The first is unbound, another one is found.
	update := func(units ...deviceplugin.Unit) {
		t.Helper()
		if err := p.Update(units); err != nil {
			t.Fatal(err)
		}
	}
	update(card(9), card(11))
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Unhealthy, "9": api.Healthy, "11": api.Healthy})
	if _, err := k.Plugin(gpu).Allocate(t.Context(), allocation("7")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a device that is gone was allocated: %v", err)
	}
	back := card(7)
	back.Values = []string{"0000:17:00.0"} // it is bound again, elsewhere
	update(back, card(9), card(11))
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Healthy, "9": api.Healthy, "11": api.Healthy})
	got, err := k.Plugin(gpu).Allocate(t.Context(), allocation("7"))
	if err != nil || got.ContainerResponses[0].Envs[back.Variable] != "0000:17:00.0" {
		t.Errorf("%v, %v", got, err)
	}
	update()
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Unhealthy, "9": api.Unhealthy, "11": api.Unhealthy})
	if n := len(k.Requests()); n != 1 {
		t.Errorf("%d registrations for one kubelet", n)
	}
}

// TestUnits_KubeletRestart: a kubelet learns of the devices as they are, by the same IDs.
func TestUnits_KubeletRestart(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	vfio(t, root, "vfio", "7", "9")
	p := &deviceplugin.Plugin{Folder: folder, Root: root, Device: deviceplugin.Device{Name: gpu, Units: []deviceplugin.Unit{card(7)}}}
	k := fakekubelet.New(t, folder)
	end := start(t, p)
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Healthy})
	k.End()
	if err := p.Update([]deviceplugin.Unit{card(9)}); err != nil { // while there is none
		t.Fatal(err)
	}
	k = fakekubelet.New(t, folder)
	k.AwaitHealth(t, gpu, map[string]string{"7": api.Unhealthy, "9": api.Healthy})
	if err := end(); err != nil {
		t.Fatal(err)
	}
	k.AwaitEnd(t, gpu)
}

// TestUnits_Bounded: devices that come and go do not fill the list.
func TestUnits_Bounded(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	k := fakekubelet.New(t, folder)
	p := &deviceplugin.Plugin{Folder: folder, Root: root, Device: deviceplugin.Device{Name: gpu, Units: []deviceplugin.Unit{card(0)}}}
	for i := 1; i < 1500; i++ {
		if err := p.Update([]deviceplugin.Unit{card(i)}); err != nil {
			t.Fatal(err)
		}
	}
	start(t, p)
	k.AwaitDevices(t, gpu, api.Unhealthy, 1000)
	if list, _ := k.List(gpu); list[0].ID != "1499" {
		t.Errorf("the first is %s, not the one that is there", list[0].ID)
	}
}

// TestUnits_Sockets: no two resources have one socket, and no name makes its path too long.
func TestUnits_Sockets(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	k := fakekubelet.New(t, folder)
	names := []string{"a.example/b-c", "a.example-b/c", strings.Repeat("a.", 100) + "example/" + strings.Repeat("b", 63)}
	for _, name := range names {
		start(t, &deviceplugin.Plugin{Folder: folder, Root: root, Device: deviceplugin.Device{Name: name, Units: []deviceplugin.Unit{card(7)}}})
	}
	for _, name := range names {
		k.AwaitHealth(t, name, map[string]string{"7": api.Unhealthy})
	}
}

func TestUnits_Invalid(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*deviceplugin.Unit)
		word   string
	}{
		"no ID":             {func(u *deviceplugin.Unit) { u.ID = "" }, "ID"},
		"a long ID":         {func(u *deviceplugin.Unit) { u.ID = strings.Repeat("7", 257) }, "ID"},
		"an ID twice":       {func(u *deviceplugin.Unit) { u.ID = "9" }, `Duplicate value: "9"`},
		"no node":           {func(u *deviceplugin.Unit) { u.Nodes = nil }, "Nodes"},
		"a path upwards":    {func(u *deviceplugin.Unit) { u.Nodes = []string{"/dev/vfio/../mem"} }, "clean"},
		"a negative cell":   {func(u *deviceplugin.Unit) { u.Cell = ptr.To(int64(-1)) }, "Cell"},
		"a variable of two": {func(u *deviceplugin.Unit) { u.Variable = "A=B C" }, "Variable"},
		"a value of two":    {func(u *deviceplugin.Unit) { u.Values = []string{"1,2"} }, "comma"},
	} {
		t.Run(name, func(t *testing.T) {
			u := card(7)
			tt.change(&u)
			p := &deviceplugin.Plugin{Folder: t.TempDir(), Device: deviceplugin.Device{Name: gpu, Units: []deviceplugin.Unit{card(9), u}}}
			if err := p.Start(t.Context()); err == nil || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("started with %v, want %q", err, tt.word)
			}
			p.Device.Units = []deviceplugin.Unit{card(9)}
			if err := p.Update([]deviceplugin.Unit{card(9), u}); err == nil || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("updated with %v, want %q", err, tt.word)
			}
		})
	}
	if err := kvm(t.TempDir(), t.TempDir(), 1).Update([]deviceplugin.Unit{card(7)}); err == nil {
		t.Error("a device with nodes has got units")
	}
	both := &deviceplugin.Plugin{Device: deviceplugin.Device{Name: "a.example/b", Nodes: []string{"/dev/kvm"}, Units: []deviceplugin.Unit{card(7)}}}
	if err := both.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("nodes and units: %v", err)
	}
}
