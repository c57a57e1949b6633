// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"
)

const (
	// registerWithin is the timeout of a registration.
	registerWithin = 10 * time.Second
	// farewell is the maximum time to wait until the last list is sent.
	farewell = time.Second
	// kubeletSocket is the name of the kubelet's socket in its directory.
	kubeletSocket = "kubelet.sock"
)

// pauses are the backoff periods before a restart, by the number of consecutive failures; the last
// one applies to all further failures.
var pauses = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// Plugin offers one resource to the kubelet. Set its fields before Start. Ready and Update may be
// called concurrently.
type Plugin struct {
	// Device is the offered device.
	Device Device
	// Folder is the directory with the sockets of the kubelet and of plugins. Defaults to
	// /var/lib/kubelet/device-plugins.
	Folder string
	// Root is the path of the node's file system. Defaults to /.
	Root string
	// Clock is the clock for the backoff. Defaults to the real clock.
	Clock clock.Clock

	serving atomic.Pointer[pluginServer]

	mu sync.Mutex
	// units is what the kubelet is offered; changed receives when Update has changed it.
	units   []Unit
	changed chan struct{}
}

// Ready reports whether a kubelet has accepted the registration, received the list of slots, and
// listens for changes. It does not depend on the health of the device.
func (p *Plugin) Ready() bool {
	s := p.serving.Load()
	return s != nil && s.watched()
}

// Update replaces the devices of a plugin with [Device.Units], which may run. A device that is not
// among them any more stays known to the kubelet, as unhealthy, and is healthy again when it
// returns. After an error nothing has changed.
func (p *Plugin) Update(units []Unit) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.Device.Nodes) > 0 {
		return invalid(p.Device.Name, "Units", "Forbidden: the device has Nodes")
	}
	if err := checkUnits(p.Device.Name, units); err != nil {
		return err
	}
	p.lockedInit()
	p.units = merge(p.units, units)
	select {
	case p.changed <- struct{}{}:
	default: // it is known that there is a change
	}
	return nil
}

// lockedInit takes over the devices of the configuration.
func (p *Plugin) lockedInit() {
	if p.changed == nil {
		p.changed = make(chan struct{}, 1)
		p.units = p.Device.units()
	}
}

// current returns the devices, and the channel that receives when they change.
func (p *Plugin) current() ([]Unit, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lockedInit()
	return p.units, p.changed
}

// Start offers the device until ctx ends, and then withdraws it. It only returns an error, at once,
// if a field is invalid.
func (p *Plugin) Start(ctx context.Context) error {
	if err := p.init(); err != nil {
		return err
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", p.Device.Resource())
	for failures := 0; ctx.Err() == nil; {
		registered, err := p.serve(ctx)
		switch {
		case ctx.Err() != nil:
			if err != nil {
				log.Error(err, "Withdrawing device failed")
			}
			return nil
		case err == nil:
			failures = 0
			continue
		case registered:
			failures = 0
		}
		pause := pauses[min(failures, len(pauses)-1)]
		failures++
		log.Error(err, "Offering device failed, retrying", "again", pause)
		select {
		case <-ctx.Done():
		case <-p.Clock.After(pause):
		}
	}
	return nil
}

// init sets the defaults of empty fields, and checks them.
func (p *Plugin) init() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Device = p.Device.withDefaults()
	if p.Folder == "" {
		p.Folder = kubelet.DevicePluginPath
	}
	if p.Root == "" {
		p.Root = "/"
	}
	if p.Clock == nil {
		p.Clock = clock.RealClock{}
	}
	return p.Device.check()
}

// serve offers the device until the kubelet restarts, which is not an error, or something fails.
func (p *Plugin) serve(ctx context.Context) (registered bool, err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return false, fmt.Errorf("deviceplugin: watching files: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	// First of all, so that no later restart of the kubelet is missed.
	if err := w.Add(p.Folder); err != nil {
		return false, fmt.Errorf("deviceplugin: watching the kubelet's directory %s: %w", p.Folder, err)
	}
	known, err := p.kubelet(ctx, w)
	if err != nil || known == nil {
		return false, err
	}
	n := nodes{watcher: w, root: p.Root}
	s := newPluginServer(p.Device, n)
	if _, err := p.refresh(n, s); err != nil {
		return false, err
	}
	sock, err := listen(ctx, filepath.Join(p.Folder, p.Device.socket()))
	if err != nil {
		return false, err
	}
	g := grpc.NewServer()
	kubelet.RegisterDevicePluginServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(sock) }()
	defer func() { err = errors.Join(err, p.stop(ctx, g, s, sock)) }()
	if err := p.register(ctx, filepath.Base(sock.path)); err != nil {
		return false, err
	}
	p.serving.Store(s)
	return true, p.watch(ctx, n, s, served, func() bool {
		now, err := os.Stat(filepath.Join(p.Folder, kubeletSocket))
		return err == nil && sameSocket(now, known) && sock.ours()
	})
}

// kubelet waits until the kubelet's socket exists; nil if ctx ends before.
func (p *Plugin) kubelet(ctx context.Context, w *fsnotify.Watcher) (os.FileInfo, error) {
	for {
		st, err := os.Stat(filepath.Join(p.Folder, kubeletSocket))
		if err == nil {
			return st, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("deviceplugin: looking up the kubelet's socket: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case _, open := <-w.Events:
			if !open {
				return nil, errors.New("deviceplugin: the file watcher is closed")
			}
		case err := <-w.Errors:
			return nil, fmt.Errorf("deviceplugin: watching the kubelet's directory: %w", err)
		}
	}
}

func (p *Plugin) register(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	c, err := grpc.NewClient("unix:"+filepath.Join(p.Folder, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("deviceplugin: connecting to the kubelet: %w", err)
	}
	_, err = kubelet.NewRegistrationClient(c).Register(ctx, &kubelet.RegisterRequest{
		Version: kubelet.Version, Endpoint: endpoint, ResourceName: p.Device.Resource(), Options: &kubelet.DevicePluginOptions{},
	})
	if err != nil {
		err = fmt.Errorf("deviceplugin: registering %s with the kubelet: %w", p.Device.Resource(), err)
	}
	return errors.Join(err, c.Close())
}

// refresh looks at the devices, and reports whether something has changed.
func (p *Plugin) refresh(n nodes, s *pluginServer) (changed bool, err error) {
	units, _ := p.current()
	missing, err := n.look(paths(units))
	if err != nil {
		return false, err
	}
	return s.set(units, missing), nil
}

// watch reports changes of the devices and their health until the plugin has to restart. It returns nil if
// the kubelet was restarted, or removed the plugin's socket, which it does when it starts.
func (p *Plugin) watch(ctx context.Context, n nodes, s *pluginServer, served <-chan error, lasts func() bool) error {
	log := logr.FromContextOrDiscard(ctx)
	_, updated := p.current()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-updated:
		case err := <-served:
			return fmt.Errorf("deviceplugin: socket closed: %w", err)
		case err := <-n.watcher.Errors:
			// Events may be lost: the restart inspects everything again.
			return fmt.Errorf("deviceplugin: watching files: %w", err)
		case _, open := <-n.watcher.Events:
			if !open {
				return errors.New("deviceplugin: the file watcher is closed")
			}
			if !lasts() {
				log.Info("Registering again after kubelet restart")
				return nil
			}
		}
		changed, err := p.refresh(n, s)
		if err != nil {
			return err
		}
		if changed {
			healthy, all := s.count()
			log.V(1).Info("Devices changed", "healthy", healthy, "all", all)
		}
	}
}

// stop reports an empty list to the kubelet, waits for up to farewell until it is sent, and removes
// the socket.
func (p *Plugin) stop(ctx context.Context, g *grpc.Server, s *pluginServer, sock *socket) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	p.serving.CompareAndSwap(s, nil)
	s.end()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		g.GracefulStop()
	}()
	select {
	case <-sent:
	case <-ctx.Done():
	}
	g.Stop()
	<-sent
	return sock.remove()
}

// Plugins are the plugins of a node.
type Plugins []*Plugin

// Start runs all plugins until ctx ends. It returns an error, at once, if a field of any of them is
// invalid.
func (p Plugins) Start(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range p {
		g.Go(func() error { return one.Start(ctx) })
	}
	return g.Wait()
}

// Ready reports whether all plugins are ready.
func (p Plugins) Ready() bool {
	return !slices.ContainsFunc(p, func(one *Plugin) bool { return !one.Ready() })
}
