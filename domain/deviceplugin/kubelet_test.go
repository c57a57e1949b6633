// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/virtloom/virtloom/domain/deviceplugin"
)

// kubelet is the device manager of a kubelet as seen by plugins: it accepts registrations on its
// socket and then calls the plugin on its socket.
type kubelet struct {
	api.UnimplementedRegistrationServer
	folder string

	mu sync.Mutex
	// refuse is the error with which registrations are answered.
	refuse error
	// requests are the registrations, lists the latest lists of the plugins.
	requests []*api.RegisterRequest
	lists    map[string][]*api.Device
	got      map[string]bool
	ended    map[string]bool
	changed  chan struct{}

	server *grpc.Server
	conns  []*grpc.ClientConn
	watch  sync.WaitGroup
}

func newKubelet(t *testing.T, folder string) *kubelet {
	t.Helper()
	k := &kubelet{folder: folder, changed: make(chan struct{}), server: grpc.NewServer(),
		lists: map[string][]*api.Device{}, got: map[string]bool{}, ended: map[string]bool{}}
	// A starting kubelet empties its directory.
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket {
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(l) }()
	t.Cleanup(k.end)
	return k
}

// end stops the kubelet.
func (k *kubelet) end() {
	k.server.Stop()
	k.mu.Lock()
	for _, c := range k.conns {
		_ = c.Close()
	}
	k.conns = nil
	k.mu.Unlock()
	k.watch.Wait()
}

func (k *kubelet) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kubelet) Register(_ context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	refuse := k.refuse
	k.mu.Unlock()
	if refuse == nil {
		c, err := grpc.NewClient("unix:"+filepath.Join(k.folder, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		k.mu.Lock()
		k.conns = append(k.conns, c)
		k.mu.Unlock()
		k.watch.Go(func() { k.listAndWatch(r.ResourceName, api.NewDevicePluginClient(c)) })
	}
	k.update(func() { k.requests = append(k.requests, r) })
	return &api.Empty{}, refuse
}

func (k *kubelet) listAndWatch(resource string, c api.DevicePluginClient) {
	if _, err := c.GetDevicePluginOptions(context.Background(), &api.Empty{}); err != nil {
		return
	}
	stream, err := c.ListAndWatch(context.Background(), &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.update(func() { k.lists[resource], k.got[resource] = list.Devices, true })
		}
	}
	k.update(func() { k.ended[resource] = true })
}

// until waits for a condition.
func (k *kubelet) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		k.mu.Lock()
		ok, changed := so(), k.changed
		k.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: condition not reached: %d requests, got %v, ended %v", what, len(k.requests), k.got, k.ended)
		}
	}
}

// devices waits for a list of n slots, all with the given health.
func (k *kubelet) devices(t *testing.T, resource, health string, n int) {
	t.Helper()
	k.until(t, resource+" is "+health, func() bool {
		l := k.lists[resource]
		return k.got[resource] && len(l) == n && !slices.ContainsFunc(l, func(d *api.Device) bool { return d.Health != health })
	})
}

// plugin returns a client of the plugin that registered last.
func (k *kubelet) plugin() api.DevicePluginClient {
	k.mu.Lock()
	defer k.mu.Unlock()
	return api.NewDevicePluginClient(k.conns[len(k.conns)-1])
}

// node creates the file system of a node with a directory for plugins. Its path is short, since
// those of sockets are limited.
func node(t *testing.T) (root, folder string) {
	t.Helper()
	root, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	folder = filepath.Join(root, "plugins")
	if err := errors.Join(os.Mkdir(folder, 0o700), os.Mkdir(filepath.Join(root, "dev"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return root, folder
}

// device creates a device node without a driver.
func device(t *testing.T, path string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatalf("device nodes cannot be made; run the tests as root: %v", err)
	}
}

// start runs a plugin until the end of the test, or until end is called, which returns the result
// of Start.
func start(t *testing.T, p interface{ Start(context.Context) error }) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = end() })
	return end
}

func kvm(root, folder string, slots int) *deviceplugin.Plugin {
	return &deviceplugin.Plugin{Device: deviceplugin.KVM(slots), Folder: folder, Root: root}
}

func mknod(path string, major uint32) error {
	return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, 0)))
}
