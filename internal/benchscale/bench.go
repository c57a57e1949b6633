// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/internal/nodestandin"
	"github.com/virtloom/virtloom/internal/rig"
)

const (
	// userNodes is who the stand-in of the nodes is to the API server.
	userNodes = "all-nodes"
	// heartbeat is how often each node gives a sign of life, as in KubeVirt.
	heartbeat = time.Minute
	// stopWithin bounds the clean-up.
	stopWithin = time.Minute
)

// bench is a control plane, what loads it, and what looks at it.
type bench struct {
	options options
	out     io.Writer
	rig     *rig.Rig
	client  client.Client
	rec     *recorder
	// daemon is the controller that is measured, and user who it is to the API server.
	daemon measured
	user   string
	// moves is for how long guests move on average, in nanoseconds.
	moves atomic.Int64
	// cancel ends the goroutines of this process, ended is closed when the nodes have ended.
	cancel context.CancelFunc
	ended  chan error
}

// measured is a controller under load.
type measured interface {
	Pid() int
	// rests waits until it has had nothing to do for a while.
	rests(ctx context.Context) error
	// profile takes CPU profiles until the returned function is called, which returns their files.
	profile(ctx context.Context, folder, phase string) (stop func() []string)
	stop() error
}

// newBench starts a control plane with nodes and watches.
func newBench(ctx context.Context, o options, out io.Writer) (_ *bench, err error) {
	ctrl.SetLogger(logr.Discard())
	b := &bench{options: o, out: out, rec: newRecorder(), user: rig.UserController}
	ctx, b.cancel = context.WithCancel(ctx)
	b.rig, err = rig.Start(ctx, rig.Options{
		Log: b.logf, SimulatedNodes: o.nodes, LeanAudit: !o.keep, KeepLogs: o.keep, Definitions: stockDefinitions(o),
		SimulatedNode: rig.NodeSpec{
			Labels:      map[string]string{v1.CPUModelLabel + cpuModel: "true"},
			Annotations: map[string]string{v1.VirtHandlerHeartbeat: time.Now().UTC().Format(time.RFC3339)},
		},
	})
	if err != nil {
		b.cancel()
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close(context.WithoutCancel(ctx), err))
		}
	}()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	if b.client, err = client.New(b.rig.Config(rig.UserAdmin), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if err := b.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, err
	}
	go b.beat(ctx)
	return b, startWatches(ctx, b.rig.Config(rig.UserAdmin), b.rec)
}

// close stops everything. After a failure the logs are kept.
func (b *bench) close(ctx context.Context, failure error) error {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	b.cancel()
	var err error
	if b.ended != nil {
		err = <-b.ended
	}
	if failure != nil && !errors.Is(failure, context.Canceled) {
		b.rig.Keep()
	}
	if b.options.keep || failure != nil && !errors.Is(failure, context.Canceled) {
		fmt.Fprintf(os.Stderr, "the logs are in %s/log\n", b.rig.Dir())
	}
	return errors.Join(err, b.rig.Stop(ctx))
}

func (b *bench) logf(format string, args ...any) {
	if b.options.verbose {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

// startNodes lets the stand-in of the nodes answer, from now on.
func (b *bench) startNodes(ctx context.Context) error {
	mgr, err := ctrl.NewManager(b.rig.Config(userNodes), ctrl.Options{
		Scheme: b.client.Scheme(), Logger: logr.Discard(), Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	n := &nodestandin.Nodes{
		Client: mgr.GetClient(), Workers: creators, Takes: func() time.Duration { return time.Duration(b.moves.Load()) },
	}
	if err := n.SetupWithManager(mgr); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	before := b.cancel
	b.cancel = func() { cancel(); before() }
	b.ended = make(chan error, 1)
	go func() { b.ended <- mgr.Start(ctx) }()
	return nil
}

// beat gives the nodes' signs of life.
func (b *bench) beat(ctx context.Context) {
	for tick := time.NewTicker(heartbeat); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case now := <-tick.C:
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1.VirtHandlerHeartbeat, now.UTC().Format(time.RFC3339))
			for i := range b.options.nodes {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
				if err := b.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil && ctx.Err() == nil {
					b.rec.fail(fmt.Errorf("heartbeat of %s: %w", node.Name, err))
				}
			}
		}
	}
}

func nodeName(i int) string { return fmt.Sprintf("sim-%d", i) }

// meter knows what the controller and the API server had used when a phase began.
type meter struct {
	b                  *bench
	begun              time.Time
	controller, server time.Duration
	// plane is what all of the control plane had used, the controller included.
	plane time.Duration
	stop  func() []string
}

// begin starts to measure a phase.
func (b *bench) begin(ctx context.Context, phase string) (m meter, err error) {
	m = meter{b: b, begun: time.Now()}
	if m.controller, err = busy(b.daemon.Pid()); err != nil {
		return m, err
	}
	if m.server, m.plane, err = b.spent(); err != nil {
		return m, err
	}
	// Forgets the peak of the phase before.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", b.daemon.Pid()), []byte("5"), 0); err != nil {
		return m, fmt.Errorf("forget the peak of memory: %w", err)
	}
	m.stop = b.daemon.profile(ctx, b.options.profiles, phase)
	return m, nil
}

// end waits until the controller rests, and adds to the phase what was used and written, for each of n.
func (m meter) end(ctx context.Context, p *Phase) error {
	load, err := m.load()
	if err != nil {
		return err
	}
	p.Load, p.Profiles = load, m.stop()
	if err := m.b.daemon.rests(ctx); err != nil {
		return err
	}
	pid := m.b.daemon.Pid()
	controller, err := busy(pid)
	if err != nil {
		return err
	}
	server, plane, err := m.b.spent()
	if err != nil {
		return err
	}
	used, err := memoryOf(pid)
	if err != nil {
		return err
	}
	requests, err := m.b.rig.Requests()
	if err != nil {
		return err
	}
	p.wrote(writesOf(requests, window{user: m.b.user, from: m.begun}, p.N))
	p.Components = componentsOf(requests, window{namespace: namespace, from: m.begun}, p.N)
	p.add(writesOfAll, p.Components[everybody], "")
	p.add(controllerCPU, (controller - m.controller).Seconds(), "s")
	p.add(serverCPU, (server - m.server).Seconds(), "s")
	p.add(planeCPU, (plane - m.plane).Seconds(), "s")
	p.add(peakMemory, used.peak, "MiB")
	return nil
}
