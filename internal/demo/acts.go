// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// pulse prints the guest's heartbeat as it goes on: every tenth, and each first
// one on a node.
func (s *story) pulse(ctx context.Context) {
	for shown, node := 0, ""; ; {
		ticks := s.console.Ticks()
		for _, t := range ticks[shown:] {
			if t.Node != node || t.N%10 == 0 {
				s.report("guest", fmt.Sprintf("heartbeat %d", t.N), "on "+t.Node)
			}
			node = t.Node
		}
		shown = len(ticks)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pulseEvery):
		}
	}
}

func (s *story) migrate(ctx context.Context) error {
	source := s.guest.Status.NodeName
	beating, rest := context.WithCancel(ctx)
	defer rest()
	go s.pulse(beating)
	go s.showProgress(beating)
	if err := s.apply(ctx, "migration.yaml"); err != nil {
		return err
	}
	if err := s.cluster.AwaitMigration(ctx, guestKey, v1.MigrationSucceeded, patience); err != nil {
		return err
	}
	vmi, err := s.cluster.VMI(ctx, guestKey)
	if err != nil {
		return err
	}
	s.guest = vmi
	s.reportMigration(vmi)
	target := vmi.Status.NodeName
	if err := s.promise(target != source && target != "", "the guest moved from %s to %s", source, target); err != nil {
		return err
	}
	// A few more ticks, so that what comes after the switch counts as well.
	ticks := s.console.Ticks()
	if _, err := s.console.AwaitTick(ctx, target, ticks[len(ticks)-1].N+10, patience); err != nil {
		return err
	}
	longest, err := s.console.Check()
	if err := s.promise(err == nil, "every heartbeat came once and in order (%d of them)%s", len(s.console.Ticks()), because(err)); err != nil {
		return err
	}
	s.measure("the longest pause between two heartbeats was %d ms", longest.Milliseconds())
	return s.single(ctx, "after the migration")
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func (s *story) remove(ctx context.Context) error {
	migration := &v1.VirtualMachineInstanceMigration{}
	migration.Namespace, migration.Name = guestKey.Namespace, guestKey.Name
	for _, step := range []func() error{
		func() error { return s.cluster.Client.Delete(ctx, s.guest.DeepCopy()) },
		func() error { return s.cluster.AwaitGone(ctx, s.guest.DeepCopy(), patience) },
		// The controller deletes the migrations of a guest that is gone.
		func() error { return s.cluster.AwaitGone(ctx, migration, patience) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	lines := s.console.Lines()
	s.report("guest", "last words", lines[len(lines)-1])
	return refcluster.Await(ctx, patience, "nothing to be left of the guest", func(ctx context.Context) error {
		pods, err := s.cluster.Pods(ctx, guestKey.Namespace)
		if err != nil {
			return err
		}
		domains, err := s.cluster.Domains(ctx)
		if err != nil {
			return err
		}
		if len(pods)+len(domains) > 0 {
			return fmt.Errorf("there are %d Pods and domains %v", len(pods), domains)
		}
		return s.promise(true, "no Pod and no domain is left")
	})
}

// stop ends the rig and looks for what it may have left behind.
func (s *story) stop(ctx context.Context) error {
	dir := s.cluster.Rig.Dir()
	if err := s.close(ctx, nil); err != nil {
		return err
	}
	left, err := refcluster.Leftovers(dir)
	return s.promise(err == nil && len(left) == 0, "no process, namespace, mount or folder is left%s%s", because(err), list(left))
}

func list(left []string) string {
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf(": %q", left)
}

// close stops what still runs. After a failure the logs are kept.
func (s *story) close(ctx context.Context, failure error) error {
	if s.watches != nil {
		s.watches()
	}
	if s.alive == nil {
		return nil
	}
	c := s.alive
	s.alive = nil
	if failure != nil {
		c.Rig.Keep()
		_, _ = fmt.Fprintf(os.Stderr, "The logs are in %s\n", c.Rig.Dir())
	}
	began := time.Now()
	err := c.Stop(ctx)
	s.report("rig", "stopped", fmt.Sprintf("took %.1f s", time.Since(began).Seconds()))
	return err
}
