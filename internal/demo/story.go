// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/examples"
	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

const (
	scene = "first-guest/"
	// patience is how long the demo waits for anything. Durations are printed and never judged: that is up to
	// the machine.
	patience = 2 * time.Minute
	// pulseEvery is how often the heartbeat is looked at.
	pulseEvery = 100 * time.Millisecond
	// bandwidth is what a migration may use, so that there is something to see of one that would be over in a second.
	bandwidth = "16Mi"
	// askTimeout bounds one request to the guest.
	askTimeout = 5 * time.Second
)

var guestKey = types.NamespacedName{Namespace: "default", Name: "first-guest"}

// story is one run of the demo.
type story struct {
	log     *transcript
	alive   *realcluster.Cluster
	cluster *realcluster.Cluster
	console *refcluster.Console
	guest   *v1.VirtualMachineInstance
	watches context.CancelFunc
}

func (s *story) stage(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return rig.ErrNeedsRoot
	}
	s.cluster, err = realcluster.Start(ctx, realcluster.Options{Rig: rig.Options{
		Log: func(format string, args ...any) { s.log.report("rig", fmt.Sprintf(format, args...), "") },
	}})
	if err != nil {
		return err
	}
	s.alive = s.cluster
	for _, n := range s.cluster.Nodes {
		s.log.report("Node/"+n.Name(), "Ready at "+n.Address(), "kubelet, containerd and kube-proxy in namespaces of their own")
	}
	s.log.measure("the nodes were Ready %.1f s after the control plane ran", s.cluster.NodesReady.Seconds())
	return nil
}

// install installs virtloom and waits until the nodes take guests.
func (s *story) install(ctx context.Context) error {
	began := time.Now()
	if err := s.cluster.Install(ctx); err != nil {
		return err
	}
	if err := s.apply(ctx, "cluster.yaml"); err != nil {
		return err
	}
	if err := s.cluster.AwaitSchedulable(ctx, patience); err != nil {
		return err
	}
	s.log.measure("the nodes took guests %.1f s after the manifests of virtloom were applied", time.Since(began).Seconds())
	ctx, s.watches = context.WithCancel(ctx)
	return s.watch(ctx)
}

func (s *story) start(ctx context.Context) error {
	applied := time.Now()
	if err := s.apply(ctx, "guest.yaml"); err != nil {
		return err
	}
	if err := s.apply(ctx, "service.yaml"); err != nil {
		return err
	}
	up, err := s.boots(ctx, "")
	if err != nil {
		return err
	}
	s.log.measure("the guest was up %.1f s after it was applied", up.Sub(applied).Seconds())
	if err := s.answers(ctx, "after its start"); err != nil {
		return err
	}
	return s.single(ctx, "after the start")
}

// boots waits for a VMI that is another than the last one, until its guest beats, and returns when that was.
func (s *story) boots(ctx context.Context, last types.UID) (up time.Time, err error) {
	if err := refcluster.Await(ctx, patience, "a VMI of the VM", func(ctx context.Context) error {
		vmi, err := s.vmi(ctx)
		if err == nil && vmi.UID == last {
			err = errors.New("it is the last one")
		}
		s.guest = vmi
		return err
	}); err != nil {
		return up, err
	}
	s.console = s.cluster.Follow(ctx, s.guest)
	first, err := s.console.AwaitTick(ctx, "", 0, patience)
	if err != nil {
		return up, err
	}
	s.log.report("guest", "first heartbeat on "+first.Node, "")
	for _, line := range s.console.Lines() {
		if _, said, found := strings.Cut(line, "virtloom-"); found && !strings.HasPrefix(said, "heartbeat") {
			s.log.report("console", "virtloom-"+said, "")
		}
	}
	return first.At, s.running(ctx, first.Node)
}

// vmi reads the guest's VMI.
func (s *story) vmi(ctx context.Context) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	return vmi, s.cluster.Client.Get(ctx, guestKey, vmi)
}

// running waits until the guest runs on a node.
func (s *story) running(ctx context.Context, node string) error {
	return refcluster.Await(ctx, patience, "the guest to run on "+node, func(ctx context.Context) error {
		vmi, err := s.vmi(ctx)
		if err != nil {
			return err
		}
		if s.guest = vmi; vmi.Status.Phase != v1.Running || vmi.Status.NodeName != node {
			return fmt.Errorf("it is %s on %q", vmi.Status.Phase, vmi.Status.NodeName)
		}
		return nil
	})
}

// answers checks that the guest answers at the address of its Pod, which its status has, and at its Service.
func (s *story) answers(ctx context.Context, when string) error {
	address := ""
	err := refcluster.Await(ctx, patience, "the guest to answer", func(ctx context.Context) error {
		vmi, err := s.vmi(ctx)
		if err != nil {
			return err
		}
		if in := vmi.Status.Interfaces; len(in) == 0 || in[0].IP == "" {
			return errors.New("its status has no address")
		}
		address = vmi.Status.Interfaces[0].IP
		return errors.Join(s.ask(ctx, address, "uptime="), s.ask(ctx, "", "uptime="))
	})
	return s.log.promise(err == nil, "the guest answers at its Pod's address %s and at its Service %s%s", address, when, because(err))
}

// ask sends a request to an address, or to the Service by the API server, and returns an error unless the answer contains a text.
func (s *story) ask(ctx context.Context, address, want string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var said []byte
	var err error
	if address == "" {
		said, err = s.cluster.Clientset.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/default/services/first-guest:80/proxy/").DoRaw(ctx)
	} else {
		said, err = s.cluster.Nodes[0].Command(ctx, "busybox", "wget", "-q", "-O", "-", "http://"+net.JoinHostPort(address, "8080")+"/").CombinedOutput()
	}
	if err != nil || !strings.Contains(string(said), want) {
		return fmt.Errorf("at %q it answers %q: %w", address, said, err)
	}
	return nil
}

func (s *story) apply(ctx context.Context, name string) error {
	s.log.report("examples/"+scene+name, "applied", "")
	raw, err := examples.FirstGuest.ReadFile(scene + name)
	if err != nil {
		return fmt.Errorf("read a manifest: %w", err)
	}
	_, err = s.kubectl(ctx, bytes.NewReader(raw), "apply", "--server-side", "-f", "-")
	return err
}

// kubectl runs kubectl as administrator and returns what it prints.
func (s *story) kubectl(ctx context.Context, in io.Reader, args ...string) (string, error) {
	cmd := s.cluster.Rig.Kubectl(ctx, args...)
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// limit limits what a migration may use of the network, which is not limited without a rate.
func (s *story) limit(ctx context.Context, rate *resource.Quantity) error {
	kv := &v1.KubeVirt{}
	if err := s.cluster.Client.Get(ctx, types.NamespacedName{Namespace: "kubevirt", Name: "kubevirt"}, kv); err != nil {
		return err
	}
	base := kv.DeepCopy()
	kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{BandwidthPerMigration: rate}
	return s.cluster.Client.Patch(ctx, kv, client.MergeFrom(base))
}

// single checks that one launcher Pod runs, on the node of the guest.
func (s *story) single(ctx context.Context, when string) error {
	err := refcluster.Await(ctx, patience, "exactly one launcher Pod", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		if len(pods) != 1 || pods[0].Spec.NodeName != s.guest.Status.NodeName || pods[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("there are %d", len(pods))
		}
		return nil
	})
	return s.log.promise(err == nil, "exactly one launcher Pod %s, where the guest is%s", when, because(err))
}

// pods lists the VMI's launcher Pods that have not ended.
func (s *story) pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := s.cluster.Client.List(ctx, &list, client.InNamespace(guestKey.Namespace), client.HasLabels{v1.CreatedByLabel})
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), err
}

func (s *story) look(keep bool) func(context.Context) error {
	return func(ctx context.Context) error {
		s.lookAround()
		if !keep {
			return nil
		}
		s.log.print("\nEverything keeps running until you press Ctrl-C.")
		<-ctx.Done()
		return errLookedAround
	}
}

func (s *story) lookAround() {
	s.log.print("  export KUBECONFIG=%s", s.cluster.Rig.Kubeconfig(rig.UserAdmin))
	s.log.print("  kubectl get vm,vmi,vmim,pods -A -o wide")
	s.log.print("  kubectl logs virt-launcher-first-guest-... -c guest-console-log")
}
