// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/fleet"
)

// socketFolder is the folder of the volume of sockets in a Pod's folder on its node, by KubeVirt's
// convention.
var socketFolder = filepath.Join("volumes", "kubernetes.io~empty-dir", "sockets")

// DefaultPods is the kubelet's folder of Pods.
const DefaultPods = "/var/lib/kubelet/pods"

// Connector is a [domainctrl.Connector] for VMIs that each have a launcher in their Pod, and keeps a
// fleet of their hypervisors complete. Fields are set before the first call and not changed
// afterwards; those without a default are required. It is safe for concurrent use.
type Connector struct {
	// Pods is the folder of the Pods' folders. Default: DefaultPods.
	Pods string
	// NodeName is the node's, as in status.activePods.
	NodeName string
	// Find returns the Pod of that UID on this node as the API server has it; nil if there is none.
	// The VMI of a launcher is that of its Pod's controller reference, which neither the launcher
	// nor a user can forge.
	Find func(ctx context.Context, uid types.UID) (*corev1.Pod, error)
	// Fleet gets a member for every launcher.
	Fleet *fleet.Fleet
	// Clock paces scans and reconnects. Default: the real one.
	Clock clock.WithTicker
	// Log receives launchers that join and leave. Default: nothing.
	Log logr.Logger

	mu   sync.Mutex
	pods map[types.UID]*launched
	by   map[string]types.UID // Pods by domain
	bad  map[types.UID]bool   // Pods that were refused, which is logged once
}

// launched is the launcher of one Pod. Its lock is held while connecting; that delays no other Pod.
type launched struct {
	mu     sync.Mutex
	client *bounded // nil while not connected
}

// Connect implements domainctrl.Connector. The Pod is the given one, or the one in the VMI's
// status.activePods that is on this node and has a socket. A launcher that serves another VMI is
// refused.
func (c *Connector) Connect(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (domain.Hypervisor, error) {
	uid, err := c.podOf(ctx, vmi, pod)
	if err != nil {
		return nil, fmt.Errorf("launcher: connect %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	client, err := c.open(ctx, uid)
	if err != nil {
		return nil, fmt.Errorf("launcher: connect %s/%s: pod %s: %w", vmi.Namespace, vmi.Name, uid, err)
	}
	want := Guest{Namespace: vmi.Namespace, Name: vmi.Name, UID: vmi.UID}
	if got := client.Guest(); got != want {
		return nil, fmt.Errorf("launcher: connect %s/%s: the launcher of pod %s is for %s: %w", vmi.Namespace, vmi.Name, uid, got, domain.ErrInvalid)
	}
	c.join(ctx, uid, client)
	return client, nil
}

// PID returns the process of the VMI's launcher, which must be connected; see Client.pid.
func (c *Connector) PID(vmi *v1.VirtualMachineInstance) (int, error) {
	uid, err := c.Pod(vmi)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	l := c.pods[uid]
	c.mu.Unlock()
	if l == nil {
		return 0, unconnected(vmi)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil || l.client.Guest().UID != vmi.UID {
		return 0, unconnected(vmi)
	}
	return l.client.pid()
}

// Pod returns the Pod of the VMI's launcher, which must be connected.
func (c *Connector) Pod(vmi *v1.VirtualMachineInstance) (types.UID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid, known := c.by[domain.Name(vmi.Namespace, vmi.Name)]
	if !known {
		return "", unconnected(vmi)
	}
	return uid, nil
}

func unconnected(vmi *v1.VirtualMachineInstance) error {
	return fmt.Errorf("launcher: the launcher of %s/%s is not connected yet: %w", vmi.Namespace, vmi.Name, domain.ErrNotReady)
}

// podOf finds the VMI's Pod.
func (c *Connector) podOf(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (types.UID, error) {
	if pod != nil {
		if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			c.forget(pod.UID)
			return "", fmt.Errorf("pod %s has ended: %w", pod.UID, domain.ErrNotReady)
		}
		return pod.UID, nil
	}
	var here []string
	var ready []types.UID
	for _, uid := range slices.Sorted(maps.Keys(vmi.Status.ActivePods)) {
		if vmi.Status.ActivePods[uid] != c.NodeName {
			continue
		}
		here = append(here, string(uid))
		there, err := c.ready(uid)
		if err != nil {
			return "", err
		}
		if there {
			ready = append(ready, uid)
		}
	}
	if len(ready) > 1 {
		ready = c.served(ctx, ready, Guest{Namespace: vmi.Namespace, Name: vmi.Name, UID: vmi.UID})
	}
	switch {
	case len(ready) == 1:
		return ready[0], nil
	case len(ready) > 1:
		return "", fmt.Errorf("status.activePods: pods %s and %s of node %s both have a launcher's socket for one VMI; delete the Pod that is not the VMI's",
			ready[0], ready[1], c.NodeName)
	case len(here) > 0:
		return "", fmt.Errorf("no launcher's socket in pod %s yet: %w", strings.Join(here, " and "), domain.ErrNotReady)
	}
	return "", fmt.Errorf("status.activePods has no pod on node %s yet: %w", c.NodeName, domain.ErrNotReady)
}

// served returns the Pods whose sockets a launcher of the VMI serves, as far as known: a killed
// launcher leaves its socket behind, until its Pod is removed, and the status may name Pods of
// others.
func (c *Connector) served(ctx context.Context, pods []types.UID, want Guest) []types.UID {
	return slices.DeleteFunc(pods, func(uid types.UID) bool {
		client, err := c.open(ctx, uid)
		return errors.Is(err, domain.ErrNotReady) || errors.Is(err, domain.ErrInvalid) || err == nil && client.Guest() != want
	})
}

// ready reports whether a Pod has a socket. A launcher without one has ended, and its domain with
// it.
func (c *Connector) ready(uid types.UID) (bool, error) {
	path, err := socketOf(uid)
	if err != nil {
		return false, err
	}
	f, err := openBelow(c.root(), path)
	if errors.Is(err, fs.ErrNotExist) {
		c.forget(uid)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// socketOf returns the path of a Pod's socket below the folder of Pods.
func socketOf(uid types.UID) (string, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(string(uid), "/\x00") {
		return "", fmt.Errorf("Pod UID: Invalid value: %q: %w", uid, domain.ErrInvalid)
	}
	return filepath.Join(string(uid), socketFolder, ReadySocket), nil
}

func (c *Connector) root() string {
	if c.Pods == "" {
		return DefaultPods
	}
	return c.Pods
}

// open connects to a Pod's launcher, or returns the existing connection.
func (c *Connector) open(ctx context.Context, uid types.UID) (*bounded, error) {
	path, err := socketOf(uid)
	if err != nil {
		return nil, err
	}
	whose, err := c.guestOfPod(ctx, uid)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	l := c.pods[uid]
	if l == nil {
		if c.pods == nil {
			c.pods = map[types.UID]*launched{}
		}
		l = &launched{}
		c.pods[uid] = l
	}
	c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil && l.client.absent() {
		// The socket has no listener any more: a container ends with its first process.
		defer c.forget(uid)
		return nil, fmt.Errorf("the launcher has ended: %w", domain.ErrNotReady)
	}
	if l.client != nil {
		return l.client, nil
	}
	o := Options{Root: c.root(), Log: c.Log}
	if c.Clock != nil {
		o.Clock = c.Clock
	}
	client, err := Dial(ctx, filepath.Join(c.root(), path), o)
	if err != nil {
		return nil, err
	}
	if got := client.Guest(); got != whose {
		_ = client.Close() // it cannot fail
		return nil, fmt.Errorf("the launcher claims to serve %s, but its Pod is controlled by %s: %w", got, whose, domain.ErrInvalid)
	}
	l.client = newBounded(client, c.logger())
	return l.client, nil
}

// join makes the launcher a member of the fleet, in place of the previous one of its domain.
func (c *Connector) join(ctx context.Context, uid types.UID, client *bounded) {
	name := client.Guest().Domain()
	c.mu.Lock()
	if c.by == nil {
		c.by = map[string]types.UID{}
	}
	before, known := c.by[name]
	if known && before == uid || c.pods[uid] == nil {
		c.mu.Unlock()
		return
	}
	c.by[name] = uid
	c.Fleet.Join(ctx, name, client)
	c.mu.Unlock()
	c.logger().V(1).Info("Added a launcher", "domain", name, "pod", uid, "before", before)
}

// forget removes a Pod's launcher.
func (c *Connector) forget(uid types.UID) {
	c.mu.Lock()
	l := c.pods[uid]
	delete(c.pods, uid)
	for name, of := range c.by {
		if of == uid {
			delete(c.by, name)
			c.Fleet.Leave(name)
			c.logger().V(1).Info("Removed a launcher", "domain", name, "pod", uid)
		}
	}
	c.mu.Unlock()
	if l != nil {
		go l.close()
	}
}

// close ends the connection, after a pending attempt to connect.
func (l *launched) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		_ = l.client.Close() // it cannot fail
		l.client.sum()
	}
}

// Discover scans all Pods of the node: new launchers join the fleet, those of deleted Pods leave
// it. The error names the launchers that did not answer; the others have been added. Of two that
// claim one VMI the first one counts, until Connect decides between them.
func (c *Connector) Discover(ctx context.Context) error {
	entries, err := os.ReadDir(c.root())
	if err != nil {
		return fmt.Errorf("launcher: discover: %w", err)
	}
	there := map[types.UID]bool{}
	for _, e := range entries {
		there[types.UID(e.Name())] = true
	}
	c.mu.Lock()
	known := slices.Collect(maps.Keys(c.pods))
	c.mu.Unlock()
	for _, uid := range known {
		if !there[uid] {
			c.forget(uid)
		}
	}
	c.mu.Lock()
	maps.DeleteFunc(c.bad, func(uid types.UID, _ bool) bool { return !there[uid] })
	c.mu.Unlock()
	errs := make([]error, len(entries))
	var all sync.WaitGroup
	for i, e := range entries {
		all.Go(func() { errs[i] = c.discover(ctx, types.UID(e.Name())) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// discover adds the launcher of one Pod, if it is ready.
func (c *Connector) discover(ctx context.Context, uid types.UID) error {
	there, err := c.ready(uid)
	if err != nil || !there {
		return err
	}
	client, err := c.open(ctx, uid)
	if errors.Is(err, domain.ErrNotReady) {
		return nil
	}
	if errors.Is(err, domain.ErrInvalid) {
		c.refuse(uid, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("launcher: pod %s: %w", uid, err)
	}
	name := client.Guest().Domain()
	c.mu.Lock()
	other, taken := c.by[name]
	c.mu.Unlock()
	if taken && other != uid {
		return fmt.Errorf("launcher: pods %s and %s both claim to run %s: %w", other, uid, name, domain.ErrInvalidState)
	}
	c.join(ctx, uid, client)
	return nil
}

// Close ends all connections; guests keep running.
func (c *Connector) Close() error {
	c.mu.Lock()
	known := slices.Collect(maps.Keys(c.pods))
	c.mu.Unlock()
	for _, uid := range known {
		c.forget(uid)
	}
	return nil
}

func (c *Connector) logger() logr.Logger {
	if c.Log.GetSink() == nil {
		return logr.Discard()
	}
	return c.Log
}
