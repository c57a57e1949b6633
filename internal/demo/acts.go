// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

// pulse prints the guest's heartbeat from now on: every tenth, and each first
// one on a node.
func (s *story) pulse(ctx context.Context) {
	for shown, node := len(s.console.Ticks()), ""; ; {
		ticks := s.console.Ticks()
		for _, t := range ticks[shown:] {
			if t.Node != node || t.N%10 == 0 {
				s.log.report("guest", fmt.Sprintf("heartbeat %d", t.N), "on "+t.Node)
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
	source, rate := s.guest.Status.NodeName, resource.MustParse(bandwidth)
	s.log.report("KubeVirt/kubevirt", "bandwidthPerMigration "+bandwidth, "a migration would be over in a moment")
	if err := s.limit(ctx, &rate); err != nil {
		return err
	}
	beating, rest := context.WithCancel(ctx)
	defer rest()
	go s.pulse(beating)
	go s.showProgress(beating)
	if err := s.apply(ctx, "migration.yaml"); err != nil {
		return err
	}
	if err := s.migrated(ctx); err != nil {
		return err
	}
	vmi, err := s.vmi(ctx)
	if err != nil {
		return err
	}
	s.guest = vmi
	s.reportMigration(vmi)
	target := vmi.Status.NodeName
	if err := s.log.promise(target != source && target != "", "the guest moved from %s to %s", source, target); err != nil {
		return err
	}
	if err := s.further(ctx, target); err != nil {
		return err
	}
	longest, err := s.console.Check()
	if err := s.log.promise(err == nil, "every heartbeat came once and in order (%d of them)%s", len(s.console.Ticks()), because(err)); err != nil {
		return err
	}
	s.log.measure("the longest pause between two heartbeats was %d ms", longest.Milliseconds())
	if err := s.answers(ctx, "after the migration"); err != nil {
		return err
	}
	return s.single(ctx, "after the migration")
}

// migrated waits until the migration has succeeded.
func (s *story) migrated(ctx context.Context) error {
	return refcluster.Await(ctx, patience, "the migration to succeed", func(ctx context.Context) error {
		m := &v1.VirtualMachineInstanceMigration{}
		if err := s.cluster.Client.Get(ctx, guestKey, m); err != nil {
			return err
		}
		if m.Status.Phase != v1.MigrationSucceeded {
			return fmt.Errorf("it is %s, %+v", m.Status.Phase, m.Status.MigrationState)
		}
		return nil
	})
}

// further waits for a few more heartbeats, so that what comes after the switch counts as well.
func (s *story) further(ctx context.Context, node string) error {
	ticks := s.console.Ticks()
	_, err := s.console.AwaitTick(ctx, node, ticks[len(ticks)-1].N+10, patience)
	return err
}

// drain empties the guest's node with kubectl.
func (s *story) drain(ctx context.Context) error {
	from := s.guest.Status.NodeName
	if err := s.limit(ctx, nil); err != nil {
		return err
	}
	s.log.report("Node/"+from, "kubectl drain", "")
	if _, err := s.kubectl(ctx, nil, "drain", from, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+patience.String()); err != nil {
		return err
	}
	to := s.other()
	if err := s.running(ctx, to); err != nil {
		return err
	}
	if err := s.further(ctx, to); err != nil {
		return err
	}
	_, err := s.console.Check()
	return s.log.promise(err == nil, "%s was drained, and the guest moved to %s with every heartbeat%s", from, to, because(err))
}

// other returns the node that the guest is not on.
func (s *story) other() string {
	i := slices.IndexFunc(s.cluster.Nodes, func(n *rig.KubeletNode) bool { return n.Name() != s.guest.Status.NodeName })
	return s.cluster.Nodes[i].Name()
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// stop ends the rig and looks for what it may have left behind.
func (s *story) stop(ctx context.Context) error {
	dir := s.cluster.Rig.Dir()
	if err := s.close(ctx, nil); err != nil {
		return err
	}
	left, err := refcluster.Leftovers(dir)
	return s.log.promise(err == nil && len(left) == 0, "no process, mount, control group, interface, named network namespace or folder is left%s%s", because(err), list(left))
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
	s.log.report("rig", "stopped", fmt.Sprintf("took %.1f s", time.Since(began).Seconds()))
	return err
}
