// SPDX-License-Identifier: Apache-2.0

// Package fakekubelet is the device manager of a kubelet as device plugins see it, for tests: it accepts registrations on its socket
// and then calls the plugin on the plugin's socket.
package fakekubelet

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// patience bounds a failure, not a success.
const patience = 30 * time.Second

// Kubelet is a device manager. It is safe for concurrent use.
type Kubelet struct {
	api.UnimplementedRegistrationServer
	folder string

	mu      sync.Mutex
	refuse  error
	regs    []*api.RegisterRequest
	lists   map[string][]*api.Device
	ended   map[string]bool
	clients map[string]api.DevicePluginClient
	changed chan struct{}

	server *grpc.Server
	conns  []*grpc.ClientConn
	watch  sync.WaitGroup
}

// Node creates the file system of a node with a directory for plugins. Its path is short, since those of sockets are limited.
func Node(t *testing.T) (root, folder string) {
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

// New starts a kubelet, which empties its directory first, as a real one does. It ends with the test.
func New(t *testing.T, folder string) *Kubelet {
	t.Helper()
	k := &Kubelet{folder: folder, changed: make(chan struct{}), server: grpc.NewServer(),
		lists: map[string][]*api.Device{}, ended: map[string]bool{}, clients: map[string]api.DevicePluginClient{}}
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
	t.Cleanup(k.End)
	return k
}

// End stops the kubelet.
func (k *Kubelet) End() {
	k.server.Stop()
	k.mu.Lock()
	for _, c := range k.conns {
		_ = c.Close()
	}
	k.conns = nil
	k.mu.Unlock()
	k.watch.Wait()
}

func (k *Kubelet) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.changed)
	k.changed = make(chan struct{})
}

// Refuse sets the error with which registrations are answered; nil accepts them.
func (k *Kubelet) Refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = err
}

// Register implements the registration service.
func (k *Kubelet) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	refuse := k.refuse
	k.mu.Unlock()
	if refuse == nil {
		c, err := grpc.NewClient("unix:"+filepath.Join(k.folder, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		client := api.NewDevicePluginClient(c)
		k.mu.Lock()
		k.conns = append(k.conns, c)
		k.clients[r.ResourceName] = client
		delete(k.ended, r.ResourceName)
		k.mu.Unlock()
		k.watch.Go(func() { k.listAndWatch(context.WithoutCancel(ctx), r.ResourceName, client) })
	}
	k.update(func() { k.regs = append(k.regs, r) })
	return &api.Empty{}, refuse
}

func (k *Kubelet) listAndWatch(ctx context.Context, resource string, c api.DevicePluginClient) {
	if _, err := c.GetDevicePluginOptions(ctx, &api.Empty{}); err != nil {
		return
	}
	stream, err := c.ListAndWatch(ctx, &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.update(func() { k.lists[resource] = list.Devices })
		}
	}
	k.update(func() { k.ended[resource] = true })
}

// Requests returns all registrations.
func (k *Kubelet) Requests() []*api.RegisterRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*api.RegisterRequest(nil), k.regs...)
}

// List returns the latest list of a resource, and whether there was one.
func (k *Kubelet) List(resource string) ([]*api.Device, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list, got := k.lists[resource]
	return list, got
}

// Plugin returns a client of the plugin that registered last for a resource.
func (k *Kubelet) Plugin(resource string) api.DevicePluginClient {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clients[resource]
}

// Until waits for a condition, which is evaluated again after each change.
func (k *Kubelet) Until(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		if so() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			k.mu.Lock()
			defer k.mu.Unlock()
			t.Fatalf("%s: condition not reached: %d requests, lists %v, ended %v", what, len(k.regs), k.lists, k.ended)
		}
	}
}

// AwaitDevices waits for a list of n devices, all with the given health.
func (k *Kubelet) AwaitDevices(t *testing.T, resource, health string, n int) {
	t.Helper()
	k.Until(t, resource+" is "+health, func() bool {
		list, got := k.List(resource)
		for _, d := range list {
			got = got && d.Health == health
		}
		return got && len(list) == n
	})
}

// AwaitHealth waits until a list has these devices, by ID, with their health.
func (k *Kubelet) AwaitHealth(t *testing.T, resource string, want map[string]string) {
	t.Helper()
	k.Until(t, resource+" is as wanted", func() bool {
		list, got := k.List(resource)
		for _, d := range list {
			got = got && want[d.ID] == d.Health
		}
		return got && len(list) == len(want)
	})
}

// AwaitEnd waits until a plugin has sent an empty list and ended.
func (k *Kubelet) AwaitEnd(t *testing.T, resource string) {
	t.Helper()
	k.Until(t, resource+" has an empty list, then its end", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.ended[resource] && len(k.lists[resource]) == 0
	})
}
