// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

const (
	// consoleContainer is KubeVirt's container that prints the console of a guest (spec.domain.devices.logSerialConsole).
	consoleContainer = "guest-console-log"
	// lookAgain is the pause between two looks for launcher Pods, and at their logs.
	lookAgain = 20 * time.Millisecond
)

// whole matches a heartbeat of the guest image that was not cut off within its number.
var whole = regexp.MustCompile(`virtloom-heartbeat n=\d+ `)

// Follow reads the console of a VMI until ctx ends, as its container guest-console-log prints it, from every launcher Pod of the VMI.
// It reads the logs where the container runtime writes them, so that nothing is missed while a kubelet is away.
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
			n := c.Node(pod.Spec.NodeName)
			if n == nil || known[pod.UID] {
				continue
			}
			known[pod.UID] = true
			visits[n.Name()]++
			f := follower{con: con, node: n.Name(), visit: visits[n.Name()]}
			path := fmt.Sprintf("/var/log/pods/%s_%s_%s/%s/0.log", pod.Namespace, pod.Name, pod.UID, consoleContainer)
			go f.run(ctx, n.HostPath(path))
		}
	}
}

// follower follows the console in one Pod.
type follower struct {
	con   *refcluster.Console
	node  string
	visit int
	// begun is a line of the log of which there is not all yet; text is one of the console that may go on in another Pod.
	begun, text string
}

// run waits for the log and reads it until ctx ends.
func (f *follower) run(ctx context.Context, path string) {
	for pause(ctx, lookAgain) {
		log, err := os.Open(path)
		if err != nil {
			continue // there is no container yet
		}
		defer func() { _ = log.Close() }()
		for r := bufio.NewReader(log); pause(ctx, lookAgain); {
			f.read(r)
		}
		return
	}
}

// read reads what there is more of the log.
func (f *follower) read(r *bufio.Reader) {
	for {
		part, err := r.ReadString('\n')
		f.begun += part
		if err != nil {
			return
		}
		// Time, stream, a mark, and the line.
		if fields := strings.SplitN(f.begun, " ", 4); len(fields) == 4 {
			f.line(strings.TrimSpace(fields[3]))
		}
		f.begun = ""
	}
}

// line records a line. The container runtime ends the last line of a container whether the guest did or not: a line is known to be
// whole once another follows, or from what it says.
func (f *follower) line(text string) {
	if f.text != "" {
		f.con.Add(f.node, f.visit, f.text, true)
		f.text = ""
	}
	if whole.MatchString(text) {
		f.con.Add(f.node, f.visit, text, true)
		return
	}
	f.text = text
	f.con.Add(f.node, f.visit, text, false)
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
