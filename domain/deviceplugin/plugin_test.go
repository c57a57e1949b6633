// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/virtloom/virtloom/domain/deviceplugin"
	"github.com/virtloom/virtloom/internal/fakekubelet"
)

func TestPlugins_Register(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	device(t, filepath.Join(root, "dev/kvm"))
	if err := os.Mkdir(filepath.Join(root, "dev/net"), 0o700); err != nil {
		t.Fatal(err)
	}
	device(t, filepath.Join(root, "dev/net/tun"))
	k := fakekubelet.New(t, folder)
	var all deviceplugin.Plugins
	for _, d := range deviceplugin.Permanent(0) {
		all = append(all, &deviceplugin.Plugin{Device: d, Folder: folder, Root: root})
	}
	if all.Ready() {
		t.Error("ready before the start")
	}
	start(t, all)
	k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 1000)
	k.AwaitDevices(t, "devices.kubevirt.io/tun", api.Healthy, 1000)
	k.AwaitDevices(t, "devices.kubevirt.io/vhost-net", api.Unhealthy, 1000)
	eventually(t, "ready", all.Ready)
	for _, r := range k.Requests() {
		name := strings.TrimPrefix(r.ResourceName, "devices.kubevirt.io/")
		want := &api.RegisterRequest{Version: "v1beta1", Endpoint: "kubevirt-" + name + ".sock",
			ResourceName: "devices.kubevirt.io/" + name, Options: &api.DevicePluginOptions{}}
		if diff := cmp.Diff(want, r, protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// eventually waits for a condition of the plugin itself, which the kubelet does not see.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(30 * time.Second); !so(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: condition not reached", what)
		}
	}
}

func TestPlugin_Allocate(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	device(t, filepath.Join(root, "dev/kvm"))
	k := fakekubelet.New(t, folder)
	start(t, kvm(root, folder, 3))
	k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 3)
	c := k.Plugin("devices.kubevirt.io/kvm")
	allocate := func(containers ...[]string) (*api.AllocateResponse, error) {
		req := &api.AllocateRequest{}
		for _, ids := range containers {
			req.ContainerRequests = append(req.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: ids})
		}
		return c.Allocate(t.Context(), req)
	}
	got, err := allocate([]string{"kvm0"}, []string{"kvm1", "kvm2"})
	if err != nil {
		t.Fatal(err)
	}
	one := &api.ContainerAllocateResponse{Devices: []*api.DeviceSpec{{ContainerPath: "/dev/kvm", HostPath: "/dev/kvm", Permissions: "rw"}}}
	want := &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{one, one}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, ids := range map[string][]string{
		"beyond the last": {"kvm3"}, "negative": {"kvm-1"}, "another device's": {"tun0"}, "zeroes": {"kvm01"}, "signed": {"kvm+1"},
		"a path": {"../kvm0"}, "empty": {""}, "none": {}, "twice": {"kvm1", "kvm1"}, "one of two": {"kvm0", "kvm7"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := allocate([]string{"kvm0"}, ids); status.Code(err) != codes.InvalidArgument {
				t.Errorf("Allocate: %v", err)
			}
			if _, err := c.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: ids}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("PreStartContainer: %v", err)
			}
		})
	}
	if _, err := c.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: []string{"kvm2"}}); err != nil {
		t.Error(err)
	}
	if _, err := c.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("GetPreferredAllocation: %v", err)
	}
}

func TestPlugin_Health(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	k := fakekubelet.New(t, folder)
	p := &deviceplugin.Plugin{Device: deviceplugin.TUN(2), Folder: folder, Root: root}
	start(t, p)
	const resource = "devices.kubevirt.io/tun"
	path := filepath.Join(root, "dev/net/tun")
	k.AwaitDevices(t, resource, api.Unhealthy, 2) // its directory is missing, too
	_, err := k.Plugin(resource).Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"tun0"}}}})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a missing device was allocated: %v", err)
	}
	for range 3 {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		device(t, path)
		k.AwaitDevices(t, resource, api.Healthy, 2)
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		k.AwaitDevices(t, resource, api.Unhealthy, 2)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	device(t, path)
	k.AwaitDevices(t, resource, api.Healthy, 2) // the file is a device now
	if n := len(k.Requests()); n != 1 {
		t.Errorf("%d registrations for one kubelet", n)
	}
	if !p.Ready() {
		t.Error("not ready because of the device's health")
	}
}

func TestPlugin_KubeletRestart(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	device(t, filepath.Join(root, "dev/kvm"))
	p := kvm(root, folder, 2)
	start(t, p)
	for range 3 {
		k := fakekubelet.New(t, folder) // the first time, the plugin is started before the kubelet
		k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 2)
		eventually(t, "ready", p.Ready)
		k.End()
		eventually(t, "not ready without a kubelet", func() bool { return !p.Ready() })
	}
}

func TestPlugin_SocketRemoved(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	device(t, filepath.Join(root, "dev/kvm"))
	k := fakekubelet.New(t, folder)
	start(t, kvm(root, folder, 2))
	k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 2)
	if err := os.Remove(filepath.Join(folder, "kubevirt-kvm.sock")); err != nil {
		t.Fatal(err)
	}
	k.Until(t, "registered again", func() bool { return len(k.Requests()) == 2 })
	k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 2)
}

func TestPlugin_EndSendsEmptyList(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	device(t, filepath.Join(root, "dev/kvm"))
	k := fakekubelet.New(t, folder)
	p := kvm(root, folder, 2)
	end := start(t, p)
	k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 2)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	k.AwaitEnd(t, "devices.kubevirt.io/kvm")
	if p.Ready() {
		t.Error("ready after the end")
	}
	if _, err := os.Lstat(filepath.Join(folder, "kubevirt-kvm.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket still exists: %v", err)
	}
}

func TestPlugin_Backoff(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	device(t, filepath.Join(root, "dev/kvm"))
	k := fakekubelet.New(t, folder)
	k.Refuse(status.Error(codes.Unavailable, "not now"))
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	p := kvm(root, folder, 2)
	p.Clock = clock
	end := start(t, p)
	try := 0
	for _, pause := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 10 * time.Second} {
		try++
		k.Until(t, "an attempt", func() bool { return len(k.Requests()) == try })
		// Only the backoff waits on the clock; the list is not watched.
		eventually(t, "it waits", clock.HasWaiters)
		clock.Step(pause - time.Millisecond)
		if !clock.HasWaiters() {
			t.Fatalf("attempt %d did not wait for %s", try, pause)
		}
		clock.Step(time.Millisecond)
	}
	k.Until(t, "the last attempt", func() bool { return len(k.Requests()) == try+1 })
	eventually(t, "it waits", clock.HasWaiters)
	k.Refuse(nil)
	clock.Step(10 * time.Second)
	k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 2)
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestPlugin_ExistingSocket(t *testing.T) {
	for name, tt := range map[string]struct {
		lay  func(t *testing.T, path string)
		free func(path string) error
	}{
		"of a process that is gone": {lay: func(t *testing.T, path string) {
			l := listener(t, path)
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}},
		"of another agent": {
			lay: func(t *testing.T, path string) { listener(t, path) }, free: os.Remove,
		},
		"a file": {
			lay: func(t *testing.T, path string) {
				if err := os.WriteFile(path, []byte("keep"), 0o600); err != nil {
					t.Fatal(err)
				}
			}, free: os.Remove,
		},
		"a link to a socket": {
			lay: func(t *testing.T, path string) {
				l := listener(t, path+".x")
				l.SetUnlinkOnClose(false)
				if err := errors.Join(l.Close(), os.Symlink(path+".x", path)); err != nil {
					t.Fatal(err)
				}
			}, free: os.Remove,
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, folder := fakekubelet.Node(t)
			device(t, filepath.Join(root, "dev/kvm"))
			path := filepath.Join(folder, "kubevirt-kvm.sock")
			k := fakekubelet.New(t, folder)
			tt.lay(t, path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			clock := clocktesting.NewFakeClock(time.Unix(0, 0))
			p := kvm(root, folder, 2)
			p.Clock = clock
			start(t, p)
			if tt.free != nil {
				eventually(t, "it waits", clock.HasWaiters)
				if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
					t.Fatalf("the existing file was replaced: %v", err)
				}
				if err := tt.free(path); err != nil {
					t.Fatal(err)
				}
				clock.Step(time.Second)
			}
			k.AwaitDevices(t, "devices.kubevirt.io/kvm", api.Healthy, 2)
		})
	}
}

func listener(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestPlugin_InvalidDevice(t *testing.T) {
	for name, tt := range map[string]struct {
		device deviceplugin.Device
		words  []string
	}{
		"nothing":     {deviceplugin.Device{}, []string{"Name", "Nodes"}},
		"a path":      {deviceplugin.Device{Name: "../kvm", Nodes: []string{"/dev/kvm"}}, []string{"../kvm", "Name"}},
		"relative":    {deviceplugin.Device{Name: "kvm", Nodes: []string{"dev/kvm"}}, []string{"Nodes", "absolute"}},
		"upwards":     {deviceplugin.Device{Name: "kvm", Nodes: []string{"/dev/../kvm"}}, []string{"Nodes", "clean"}},
		"permissions": {deviceplugin.Device{Name: "kvm", Nodes: []string{"/dev/kvm"}, Permissions: "rx"}, []string{"Permissions", `"rx"`}},
		"negative":    {deviceplugin.KVM(-1), []string{"Slots", "-1"}},
		"too many":    {deviceplugin.KVM(100_001), []string{"Slots", "100001"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &deviceplugin.Plugin{Device: tt.device, Folder: t.TempDir()}
			err := deviceplugin.Plugins{p}.Start(context.Background())
			if err == nil {
				t.Fatal("the device was accepted")
			}
			for _, w := range tt.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
		})
	}
}

func TestPlugin_OpensDeviceBeforeAllocation(t *testing.T) {
	root, folder := fakekubelet.Node(t)
	path := filepath.Join(root, "dev/vhost-net")
	device(t, path)
	k := fakekubelet.New(t, folder)
	start(t, &deviceplugin.Plugin{Device: deviceplugin.Device{Name: "vhost-net", Nodes: []string{"/dev/vhost-net", "/dev/none"}, Slots: 1, Open: true},
		Folder: folder, Root: root})
	k.AwaitDevices(t, "devices.kubevirt.io/vhost-net", api.Unhealthy, 1) // one of two nodes is not enough
	nowhere := filepath.Join(root, "dev/none")
	if err := mknod(nowhere, 511); err != nil { // a major number without a driver
		t.Fatal(err)
	}
	k.AwaitDevices(t, "devices.kubevirt.io/vhost-net", api.Healthy, 1)
	_, err := k.Plugin("devices.kubevirt.io/vhost-net").Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"vhost-net0"}}}})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "dev/none") {
		t.Fatalf("the device was not opened: %v", err)
	}
}
