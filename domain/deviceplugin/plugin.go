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
	// registerWithin is how long the kubelet may take to answer a registration.
	registerWithin = 10 * time.Second
	// farewell is how long, at most, the plugin waits for its last list to go out.
	farewell = time.Second
	// kubeletSocket is the name of the kubelet's socket in its folder.
	kubeletSocket = "kubelet.sock"
)

// pauses are those before the plugin begins anew, by how often it has failed in a
// row; the last one is for all further failures.
var pauses = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// Plugin offers one device to the kubelet. Set its fields, then call Start; Ready
// may be called at any time, by anybody.
type Plugin struct {
	// Device is what is offered.
	Device Device
	// Folder is where the kubelet's socket and those of plugins are; empty means
	// /var/lib/kubelet/device-plugins.
	Folder string
	// Root is where the file system of the node is seen; empty means /.
	Root string
	// Clock measures the pauses; nil means the real one.
	Clock clock.Clock

	serving atomic.Pointer[server]
}

// Ready tells whether a kubelet has taken the registration, knows the list of slots
// and listens for changes. It says nothing of the device's health.
func (p *Plugin) Ready() bool {
	s := p.serving.Load()
	return s != nil && s.watched()
}

// Start offers the device until ctx ends, and then withdraws it. The error says
// what is wrong with the plugin's fields; nothing else ends it.
func (p *Plugin) Start(ctx context.Context) error {
	p.Device = p.Device.withDefaults()
	if err := p.Device.check(); err != nil {
		return err
	}
	if p.Folder == "" {
		p.Folder = kubelet.DevicePluginPath
	}
	if p.Root == "" {
		p.Root = "/"
	}
	if p.Clock == nil {
		p.Clock = clock.RealClock{}
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", p.Device.Resource())
	for failures := 0; ctx.Err() == nil; {
		registered, err := p.serve(ctx)
		switch {
		case ctx.Err() != nil:
			if err != nil {
				log.Error(err, "Could not withdraw the device")
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
		log.Error(err, "Could not offer the device", "again", pause)
		select {
		case <-ctx.Done():
		case <-p.Clock.After(pause):
		}
	}
	return nil
}

// serve offers the device until the kubelet has been restarted, which is no error,
// or something fails.
func (p *Plugin) serve(ctx context.Context) (registered bool, err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return false, fmt.Errorf("deviceplugin: watch files: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	// Before all else: a kubelet that comes from here on is noticed.
	if err := w.Add(p.Folder); err != nil {
		return false, fmt.Errorf("deviceplugin: watch the kubelet's folder %s: %w", p.Folder, err)
	}
	known, err := p.kubelet(ctx, w)
	if err != nil || known == nil {
		return false, err
	}
	n := nodes{watcher: w, root: p.Root, paths: p.Device.Nodes}
	healthy, err := n.look()
	if err != nil {
		return false, err
	}
	sock, err := listen(ctx, filepath.Join(p.Folder, "kubevirt-"+p.Device.Name+".sock"))
	if err != nil {
		return false, err
	}
	var load func() error
	if p.Device.Open {
		load = n.load
	}
	s := newServer(p.Device, healthy, load)
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
		return err == nil && same(now, known) && sock.ours()
	})
}

// kubelet waits for the kubelet's socket to be there; nil if ctx ends before.
func (p *Plugin) kubelet(ctx context.Context, w *fsnotify.Watcher) (os.FileInfo, error) {
	for {
		st, err := os.Stat(filepath.Join(p.Folder, kubeletSocket))
		if err == nil {
			return st, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("deviceplugin: look for the kubelet: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case _, open := <-w.Events:
			if !open {
				return nil, errors.New("deviceplugin: files are no longer watched")
			}
		case err := <-w.Errors:
			return nil, fmt.Errorf("deviceplugin: watch the kubelet's folder: %w", err)
		}
	}
}

func (p *Plugin) register(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	c, err := grpc.NewClient("unix:"+filepath.Join(p.Folder, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("deviceplugin: reach the kubelet: %w", err)
	}
	_, err = kubelet.NewRegistrationClient(c).Register(ctx, &kubelet.RegisterRequest{
		Version: kubelet.Version, Endpoint: endpoint, ResourceName: p.Device.Resource(), Options: &kubelet.DevicePluginOptions{},
	})
	if err != nil {
		err = fmt.Errorf("deviceplugin: register %s with the kubelet: %w", p.Device.Resource(), err)
	}
	return errors.Join(err, c.Close())
}

// watch passes on what happens to the device until the plugin has to begin anew: nil
// says that the kubelet did, or took the plugin's socket away, as it does when it
// begins.
func (p *Plugin) watch(ctx context.Context, n nodes, s *server, served <-chan error, lasts func() bool) error {
	log := logr.FromContextOrDiscard(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return fmt.Errorf("deviceplugin: the socket is closed: %w", err)
		case err := <-n.watcher.Errors:
			// Events may be missing: the beginning looks at everything.
			return fmt.Errorf("deviceplugin: watch files: %w", err)
		case _, open := <-n.watcher.Events:
			if !open {
				return errors.New("deviceplugin: files are no longer watched")
			}
			if !lasts() {
				log.Info("The kubelet has been restarted")
				return nil
			}
		}
		healthy, err := n.look()
		if err != nil {
			return err
		}
		if s.setHealthy(healthy) {
			log.Info("The device's health has changed", "healthy", healthy)
		}
	}
}

// stop tells the kubelet that there is none of the device left, for as long as that
// may take, and takes the socket away.
func (p *Plugin) stop(ctx context.Context, g *grpc.Server, s *server, sock *socket) error {
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

// Start runs all of them until ctx ends. It returns an error, at once, if one of
// them is not set up right.
func (p Plugins) Start(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range p {
		g.Go(func() error { return one.Start(ctx) })
	}
	return g.Wait()
}

// Ready tells whether the kubelet knows all of the devices.
func (p Plugins) Ready() bool {
	return !slices.ContainsFunc(p, func(one *Plugin) bool { return !one.Ready() })
}
