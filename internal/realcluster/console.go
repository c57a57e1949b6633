// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"bufio"
	"context"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

const (
	// consoleContainer is KubeVirt's container that prints the console of a guest (spec.domain.devices.logSerialConsole).
	consoleContainer = "guest-console-log"
	// lookAgain is the pause between two looks for launcher Pods, and between two attempts to follow one.
	lookAgain = 50 * time.Millisecond
)

// whole matches a heartbeat of the guest image that was not cut off within its number.
var whole = regexp.MustCompile(`virtloom-heartbeat n=\d+ `)

// Follow reads the console of a VMI until ctx ends, as "kubectl logs -f -c guest-console-log" prints it, from every launcher Pod of
// the VMI and across restarts of kubelet and container runtime.
func (c *Cluster) Follow(ctx context.Context, vmi *v1.VirtualMachineInstance) *refcluster.Console {
	con := refcluster.NewConsole()
	go c.followPods(ctx, con, vmi.Namespace, vmi.UID)
	return con
}

func (c *Cluster) followPods(ctx context.Context, con *refcluster.Console, namespace string, uid types.UID) {
	known, visits := map[types.UID]bool{}, map[string]int{}
	for pause(ctx, lookAgain) {
		var list corev1.PodList
		if c.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{v1.CreatedByLabel: string(uid)}) != nil {
			continue // the API server may be away
		}
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Spec.NodeName == "" || known[pod.UID] {
				continue
			}
			known[pod.UID] = true
			visits[pod.Spec.NodeName]++
			f := follower{c: c, con: con, key: client.ObjectKeyFromObject(pod), uid: pod.UID, node: pod.Spec.NodeName, visit: visits[pod.Spec.NodeName]}
			go f.run(ctx)
		}
	}
}

// follower follows the console in one Pod.
type follower struct {
	c     *Cluster
	con   *refcluster.Console
	key   types.NamespacedName
	uid   types.UID
	node  string
	visit int
	lines int // that were read
}

// run follows the log until its container has ended. Where the connection is lost, it reads the log once more, and skips what it has.
func (f *follower) run(ctx context.Context) {
	for pause(ctx, lookAgain) {
		over := f.over(ctx)
		if err := f.read(ctx); (err == nil || apierrors.IsNotFound(err)) && over {
			return
		}
	}
}

// over reports whether the container has ended, or the Pod is gone.
func (f *follower) over(ctx context.Context) bool {
	pod := &corev1.Pod{}
	if err := f.c.Client.Get(ctx, f.key, pod); err != nil {
		return apierrors.IsNotFound(err)
	}
	if pod.UID != f.uid {
		return true
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if s.Name == consoleContainer {
			return s.State.Terminated != nil
		}
	}
	return false
}

// read reads the log to its present end, or until the connection is lost.
func (f *follower) read(ctx context.Context) error {
	stream, err := f.c.Clientset.CoreV1().Pods(f.key.Namespace).GetLogs(f.key.Name, &corev1.PodLogOptions{Container: consoleContainer, Follow: true}).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	// The container runtime ends the last line of a container, whether the guest did or not: a line is known to be whole once another
	// follows, or from what it says.
	r, pending := bufio.NewReader(stream), ""
	for n := 0; ; n++ {
		text, err := r.ReadString('\n')
		if pending != "" {
			f.con.Add(f.node, f.visit, pending, err == nil)
		}
		if err != nil {
			if pending != "" {
				f.lines-- // it is read once more if the container goes on
			}
			return nil
		}
		pending = ""
		if n < f.lines {
			continue
		}
		f.lines = n + 1
		if pending = strings.TrimSpace(text); whole.MatchString(pending) {
			f.con.Add(f.node, f.visit, pending, true)
			pending = ""
		}
	}
}

// pause waits for a while; false means that ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
