// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/examples"
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
	// progressEvery is the interval of progress reports of a migration, and bandwidth what it may
	// use, so that there is something to see of one that would be over in a second.
	progressEvery = 300 * time.Millisecond
	bandwidth     = "16Mi"
	nodes         = 2
)

var guestKey = types.NamespacedName{Namespace: "default", Name: "first-guest"}

// story is one run of the demo. Everything printed goes through it, a line at
// a time, without control characters but for those of the progress bar.
type story struct {
	began    time.Time
	terminal bool // out is one

	mu    sync.Mutex
	out   io.Writer
	bar   string // what the last line of a terminal shows; empty for nothing
	alive *refcluster.Cluster
	// verdicts are the lines of the summary.
	verdicts []verdict

	cluster *refcluster.Cluster
	console *refcluster.Console
	guest   *v1.VirtualMachineInstance
	watches context.CancelFunc
}

// verdict is one thing the demo promised, and whether it was seen; or, with a mark of its own, how long it took.
type verdict struct {
	mark, text string
}

// The marks of verdicts in the summary.
const (
	seen     = "ok    "
	unseen   = "FAILED"
	measured = "took  "
)

func (s *story) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar == "" {
		_, _ = fmt.Fprintf(s.out, format+"\n", args...)
		return
	}
	_, _ = fmt.Fprintf(s.out, eraseLine+format+"\n"+s.bar, args...)
}

// report prints a line of the timeline: when, what object, what happened, why.
func (s *story) report(object, what, why string) {
	line := fmt.Sprintf("%7.2fs  %-34s %s", time.Since(s.began).Seconds(), object, what)
	if why != "" {
		line += " - " + why
	}
	s.print("%s", printable(line))
}

// printable keeps control characters of others off the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

func (s *story) heading(title string) { s.print("\n== %s", title) }

// promise records whether something promised was seen.
func (s *story) promise(ok bool, format string, args ...any) error {
	v := verdict{seen, fmt.Sprintf(format, args...)}
	if !ok {
		v.mark = unseen
	}
	s.judge(v)
	if !ok {
		return errors.New("not seen: " + v.text)
	}
	s.report("demo", "checked", v.text)
	return nil
}

// measure records how long something took.
func (s *story) measure(format string, args ...any) {
	v := verdict{measured, fmt.Sprintf(format, args...)}
	s.judge(v)
	s.report("demo", "measured", v.text)
}

func (s *story) judge(v verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verdicts = append(s.verdicts, v)
}

func (s *story) summary(err error) {
	s.print("\n== Summary")
	for _, v := range s.verdicts {
		s.print("  %s  %s", v.mark, v.text)
	}
	if err == nil {
		s.print("Everything was seen, in %.1f seconds.", time.Since(s.began).Seconds())
	}
}

func (s *story) stage(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return rig.ErrNeedsRoot
	}
	s.cluster, err = refcluster.Start(ctx, refcluster.Options{Nodes: nodes, Built: true, Rig: rig.Options{
		Log: func(format string, args ...any) { s.report("rig", fmt.Sprintf(format, args...), "") },
	}})
	if err != nil {
		return err
	}
	s.alive = s.cluster
	for _, n := range s.cluster.Nodes {
		s.report("Node/"+n.Name(), "up at "+n.Address(), "its own network, mount, UTS and PID namespace and its own libvirt")
	}
	ctx, s.watches = context.WithCancel(ctx)
	return s.watch(ctx)
}

func (s *story) daemons(ctx context.Context) error {
	if _, err := s.cluster.StartController(); err != nil {
		return err
	}
	for _, n := range s.cluster.Nodes {
		if _, err := s.cluster.StartAgent(n, "--progress-every", progressEvery.String()); err != nil {
			return err
		}
	}
	return s.cluster.AwaitAgents(ctx, patience)
}

func (s *story) start(ctx context.Context) (err error) {
	for _, name := range []string{"cluster.yaml", "disk.yaml"} {
		if err := s.apply(ctx, name); err != nil {
			return err
		}
	}
	if err := s.slow(ctx); err != nil {
		return err
	}
	applied := time.Now()
	if err := s.apply(ctx, "guest.yaml"); err != nil {
		return err
	}
	if s.guest, err = s.cluster.VMI(ctx, guestKey); err != nil {
		return err
	}
	s.console = s.cluster.Follow(ctx, s.guest.UID)
	first, err := s.console.AwaitTick(ctx, "", 0, patience)
	if err != nil {
		return err
	}
	up := first.At.Sub(applied)
	s.report("guest", "first heartbeat on "+first.Node, "")
	if s.guest, err = s.cluster.AwaitPhase(ctx, guestKey, v1.Running, patience); err != nil {
		return err
	}
	s.measure("the guest was up %.1f s after it was applied", up.Seconds())
	return s.single(ctx, "before the migration")
}

func (s *story) apply(ctx context.Context, name string) error {
	s.report("examples/"+scene+name, "applied", "")
	return s.cluster.Apply(ctx, examples.FirstGuest, scene+name)
}

// slow limits what a migration may use of the network.
func (s *story) slow(ctx context.Context) error {
	kv := &v1.KubeVirt{}
	if err := s.cluster.Client.Get(ctx, types.NamespacedName{Namespace: "kubevirt", Name: "kubevirt"}, kv); err != nil {
		return err
	}
	base, rate := kv.DeepCopy(), resource.MustParse(bandwidth)
	if kv.Spec.Configuration.MigrationConfiguration == nil {
		kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{}
	}
	kv.Spec.Configuration.MigrationConfiguration.BandwidthPerMigration = &rate
	s.report("KubeVirt/"+kv.Name, "bandwidthPerMigration "+bandwidth, "a migration would be over in a moment")
	return s.cluster.Client.Patch(ctx, kv, client.MergeFrom(base))
}

// single checks that there is one Pod and one domain, and that they belong
// together.
func (s *story) single(ctx context.Context, when string) error {
	return s.cluster.AwaitSingle(ctx, guestKey, patience, func(pods, domains int, err error) error {
		return s.promise(err == nil && pods == 1 && domains == 1, "exactly one Pod and one domain %s", when)
	})
}

func (s *story) look(keep bool) func(context.Context) error {
	return func(ctx context.Context) error {
		s.lookAround()
		if !keep {
			return nil
		}
		s.print("\nEverything keeps running until you press Ctrl-C.")
		<-ctx.Done()
		return errLookedAround
	}
}

func (s *story) lookAround() {
	s.print("  export KUBECONFIG=%s", s.cluster.Rig.Kubeconfig(rig.UserAdmin))
	s.print("  kubectl get vmi,vmim,pods -o wide")
	for _, n := range s.cluster.Nodes {
		s.print("  virsh -c '%s' list --all        # %s", n.URI(), n.Name())
	}
}
