// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// launcherLabel is the value of KubeVirt's label for launcher Pods.
const launcherLabel = "virt-launcher"

// kubelet replaces the part of a kubelet that kwok does not simulate: it runs "refdaemon launcher" for
// each launcher Pod on the nodes of a cluster, and ends it with its Pod. Safe for concurrent use.
type kubelet struct {
	c    *Cluster
	stop context.CancelFunc
	done chan struct{}
	jobs sync.WaitGroup // ends of Pods

	mu   sync.Mutex
	pods map[types.UID]*rig.Pod
	err  error // the first Pod that could not be started
}

// startKubelet begins to run Pods.
func (c *Cluster) startKubelet(ctx context.Context) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w, err := c.Client.Watch(ctx, &corev1.PodList{}, client.MatchingLabels{v1.AppLabel: launcherLabel})
	if err != nil {
		stop()
		return fmt.Errorf("refcluster: pods: %w", err)
	}
	c.kubelet = &kubelet{c: c, stop: stop, done: make(chan struct{}), pods: map[types.UID]*rig.Pod{}}
	go c.kubelet.follow(ctx, w)
	return nil
}

// close stops following; what runs ends with its node.
func (k *kubelet) close() {
	k.stop()
	<-k.done
	k.jobs.Wait()
}

func (k *kubelet) follow(ctx context.Context, w watch.Interface) {
	defer close(k.done)
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			k.failed(fmt.Errorf("pods are watched no more: %v", e.Object))
			return
		}
		switch {
		case e.Type == watch.Deleted:
			k.end(pod.UID, 0)
		case pod.DeletionTimestamp != nil:
			k.end(pod.UID, grace(pod))
		default:
			if err := k.run(ctx, pod); err != nil {
				k.failed(err)
			}
		}
	}
}

func grace(pod *corev1.Pod) time.Duration {
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 0
}

func (k *kubelet) failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
}

// alive returns the error of a Pod that could not be started.
func (k *kubelet) alive() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// run starts the launcher of a Pod once.
func (k *kubelet) run(ctx context.Context, pod *corev1.Pod) error {
	node := k.c.Node(pod.Spec.NodeName)
	k.mu.Lock()
	defer k.mu.Unlock()
	if node == nil || k.pods[pod.UID] != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	sockets := filepath.Join(podsDir(node), string(pod.UID), "volumes", "kubernetes.io~empty-dir", "sockets")
	if err := os.MkdirAll(node.HostPath(sockets), 0o755); err != nil {
		return fmt.Errorf("refcluster: pod %s: %w", pod.Name, err)
	}
	p, err := node.RunPod(pod.Name, string(pod.UID), sockets, exec.Command("nice", append(rig.Undisturbed(), k.c.binary, "launcher",
		"--kubevirt-share-dir", rig.PodShared, "--private-dir", rig.PodShared+"/private", "--namespace", pod.Namespace,
		"--name", pod.Annotations[v1.DomainAnnotation], "--uid", pod.Labels[v1.CreatedByLabel], "--libvirtd", "libvirtd",
		"--grace-period-seconds", "600")...))
	if err != nil {
		return fmt.Errorf("refcluster: pod %s: %w", pod.Name, err)
	}
	k.pods[pod.UID] = p
	k.jobs.Go(func() { k.report(ctx, pod, p) })
	return nil
}

// launcherLibvirt is the path of a launcher's libvirt socket in its Pod.
const launcherLibvirt = rig.PodSockets + "/libvirt/libvirt-sock"

// podsDir returns the directory of the sockets of a node's Pods, in KubeVirt's layout.
func podsDir(n *rig.HypervisorNode) string { return filepath.Join(n.StateDir(), "pods") }

// end asks a Pod to end and kills it after its grace.
func (k *kubelet) end(uid types.UID, grace time.Duration) {
	k.mu.Lock()
	p := k.pods[uid]
	k.mu.Unlock()
	if p == nil {
		return
	}
	k.jobs.Go(func() {
		if err := p.Stop(grace); err != nil {
			k.failed(err)
		}
	})
}

// report writes the final status of a Pod.
func (k *kubelet) report(ctx context.Context, pod *corev1.Pod, p *rig.Pod) {
	select {
	case <-p.Done():
	case <-ctx.Done():
		return
	}
	// What was reported of its containers since it was started has to be known to be replaced.
	if err := k.c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			k.failed(fmt.Errorf("refcluster: pod %s: %w", pod.Name, err))
		}
		k.removed(p)
		return
	}
	base := pod.DeepCopy()
	pod.Status.Phase = corev1.PodFailed
	var exit *exec.ExitError
	if err := p.Ended(); !errors.As(err, &exit) {
		pod.Status.Phase = corev1.PodSucceeded
	}
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	}
	err := k.c.Client.Status().Patch(ctx, pod, client.MergeFrom(base))
	if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
		k.failed(fmt.Errorf("refcluster: pod %s: %w", pod.Name, err))
	}
	k.removed(p)
}

// removed removes the leftovers of an ended Pod on its node.
func (k *kubelet) removed(p *rig.Pod) {
	if err := p.Remove(); err != nil {
		k.failed(err)
	}
}

// here returns the Pods that run on a node.
func (k *kubelet) here(n *rig.HypervisorNode) (here []*rig.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		select {
		case <-p.Done():
		default:
			if p.Node() == n {
				here = append(here, p)
			}
		}
	}
	return here
}

// domains lists the domains in the Pods of a node.
func (k *kubelet) domains(ctx context.Context, n *rig.HypervisorNode) ([]string, error) {
	var all []string
	for _, p := range k.here(n) {
		names, err := p.Domains(ctx, launcherLibvirt)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	return all, nil
}

// Virsh runs a virsh command on a domain, with the libvirt that has the domain on the node, and returns
// its output.
func (c *Cluster) Virsh(ctx context.Context, node, command, domain string) (string, error) {
	n := c.Node(node)
	if c.kubelet == nil {
		return n.Virsh(ctx, command, domain)
	}
	for _, p := range c.kubelet.here(n) {
		names, err := p.Domains(ctx, launcherLibvirt)
		if err != nil {
			return "", err
		}
		if slices.Contains(names, domain) {
			return p.Virsh(ctx, launcherLibvirt, command, domain)
		}
	}
	return "", fmt.Errorf("refcluster: no Pod on node %s has domain %s", node, domain)
}
