// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// floor measures how fast this machine is: n VMIs get a Pod each, and are set Scheduled when it runs,
// by a client that decides nothing. No controller needs less.
func (b *bench) floor(ctx context.Context, n int) (Phase, error) {
	p := Phase{Name: phaseFloor, N: n}
	config := b.rig.Config(rig.UserController)
	config.QPS = -1 // unlimited
	c, err := client.New(config, client.Options{Scheme: b.client.Scheme()})
	if err != nil {
		return p, err
	}
	server, plane, err := b.spent()
	if err != nil {
		return p, err
	}
	running := make(chan string, n)
	b.rec.hook(podRunning, func(guest string) { running <- guest })
	work, ctx := errgroup.WithContext(ctx)
	for range creators {
		work.Go(func() error { return b.schedule(ctx, c, running, n) })
	}
	work.Go(func() error {
		return atOnce(ctx, n, func(ctx context.Context, i int) error {
			b.rec.note(guestCreated, guestName(i), time.Now())
			_, err := b.createWithPod(ctx, c, newGuest(i))
			return err
		})
	})
	if err := work.Wait(); err != nil {
		return p, err
	}
	serverAfter, planeAfter, err := b.spent()
	if err != nil {
		return p, err
	}
	scheduled := spreadOf(b.rec.between(guestCreated, guestScheduled))
	p.step("create to Scheduled p50/p95/p99", scheduled)
	p.add(allScheduled, b.since(guestCreated, guestScheduled, n), "s")
	p.add(scheduledP50, scheduled.P50, "s")
	p.add(scheduledP99, scheduled.P99, "s")
	p.add(serverCPU, (serverAfter - server).Seconds(), "s")
	p.add(planeCPU, (planeAfter - plane).Seconds(), "s")
	return p, nil
}

// schedule sets VMIs whose Pods run Scheduled, until all n are.
func (b *bench) schedule(ctx context.Context, c client.Client, running <-chan string, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make(chan error, 1)
	go func() { all <- b.rec.await(ctx, guestScheduled, n) }()
	for {
		select {
		case err := <-all:
			return err
		case name := <-running:
			g := &v1.VirtualMachineInstance{}
			g.Namespace, g.Name = namespace, name
			patch := fmt.Appendf(nil, `{"status":{"phase":%q}}`, v1.Scheduled)
			if err := c.Patch(ctx, g, client.RawPatch(types.MergePatchType, patch)); err != nil {
				return err
			}
		}
	}
}

// spent is the processor time that the API server, and the whole control plane, have used so far, the
// controller included if there is one.
func (b *bench) spent() (server, plane time.Duration, err error) {
	for _, name := range []string{"kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok"} {
		used, err := busy(b.rig.ProcessID(name))
		if err != nil {
			return 0, 0, err
		}
		if plane += used; name == "kube-apiserver" {
			server = used
		}
	}
	if b.daemon == nil {
		return server, plane, nil
	}
	used, err := busy(b.daemon.Pid())
	return server, plane + used, err
}
