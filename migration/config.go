// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/queue"
)

// Timeouts bound the phases. Zero means the default, negative no bound.
type Timeouts struct {
	// Pending bounds the wait for the VMI, the queue and the slots: phase Pending, and
	// phase Scheduled while no slot at the target is free, each from its begin. Between
	// clusters also the wait for other migrations of the VMI and, of a sender, for the
	// receiver's target Pod. Default 24 h.
	Pending time.Duration
	// Unschedulable bounds how long the target Pod may be unschedulable, from its
	// creation; default 300 s, overridden per migration by the annotation
	// kubevirt.io/migrationUnschedulablePodTimeoutSeconds.
	Unschedulable time.Duration
	// TargetPod bounds how long the target Pod may be unready for any reason, from its
	// creation; default 900 s, overridden per migration by the annotation
	// kubevirt.io/migrationPendingPodTimeoutSeconds.
	TargetPod time.Duration
	// HandOff bounds phase Scheduled from when a slot at the target node is free; the wait
	// for the slot is bounded by Pending. Default 15 min.
	HandOff time.Duration
	// Prepare bounds phase PreparingTarget; default 5 min.
	Prepare time.Duration
	// Begin bounds phase TargetReady; default 5 min.
	Begin time.Duration
	// Synchronize bounds the waits for the other cluster, in migrations between clusters:
	// phases Synchronizing and WaitingForSync, from their begin, and the answer to an abort
	// request; default 1 h.
	Synchronize time.Duration
	// Complete bounds the work after the VMI has arrived and the target node has completed
	// the migration: live updates that the migration applies, the claim with the VMI's state.
	// Default 15 min, from the end of the transfer. The migration then succeeds without
	// them.
	Complete time.Duration
	// Running bounds phase Running. Zero means a budget computed from the resolved
	// completion timeout and the guest memory, see [policy.Resolution.Budget]. Post-copy is
	// not bounded: it cannot be reverted.
	Running time.Duration
}

// Config is the configuration of the cluster's administrator. Its zero value is usable
// after [Config.WithDefaults].
type Config struct {
	// Limits bound parallel migrations. A zero field means its default.
	Limits queue.Limits
	// Timeouts bound the phases.
	Timeouts Timeouts
	// PodsFollowGuests says that another controller, as package vmi/vmictrl, maintains the annotations of the VMIs'
	// Pods, which announce to the network where a VMI runs. Default false: each target Pod is annotated here.
	PodsFollowGuests bool
	// KeepFinished is the number of finished migrations kept per VMI; older ones are
	// deleted. Default 5, negative keeps all.
	KeepFinished int
	// PodGrace is the grace period, in seconds, for deleting Pods that the VMI has left or
	// did not reach. Default 1: they run no domain that would have to shut down.
	PodGrace int64
	// Cluster is spec.configuration.migrations of the KubeVirt object; nil
	// means KubeVirt's defaults.
	Cluster *v1.MigrationConfiguration
	// Backoff delays automatic migrations after failures.
	Backoff Backoff
	// AwaitNodes is how long a migration waits while no node matches its target Pod. Zero
	// means not at all: the migration fails at once. Negative skips the check: the Pod is
	// created and left to the scheduler, as required where an autoscaler adds nodes for
	// unschedulable Pods.
	AwaitNodes time.Duration
	// Root says that launchers run as root: KubeVirt's feature gate Root is on.
	Root bool
	// AbortBackups says that the executor of plans can abort backups, which critical
	// migrations then do; otherwise they wait for backups as all others do.
	AbortBackups bool
	// Cooldown is the minimum time between an automatic migration that succeeded and one for an update or a
	// descheduler. Node drains ignore it. Default 5 min, negative means none.
	Cooldown time.Duration
	// Decentralized allows migrations between clusters, see [FeatureGate].
	Decentralized bool
	// Evaluator holds the checks; nil means [DefaultChecks].
	Evaluator Evaluator
}

// WithDefaults returns the configuration with unset fields at their defaults.
// Limits set in Cluster win over Limits.
func (c Config) WithDefaults() Config {
	c.Limits = c.limits()
	c.Timeouts = c.Timeouts.withDefaults()
	c.Backoff = c.Backoff.withDefaults()
	c.KeepFinished = cmp.Or(c.KeepFinished, 5)
	c.PodGrace = cmp.Or(c.PodGrace, 1)
	c.Cooldown = cmp.Or(c.Cooldown, 5*time.Minute)
	if c.Evaluator == nil {
		c.Evaluator = DefaultChecks()
	}
	return c
}

// limits merges the cluster's limits over the configured ones and the defaults.
// Only the KubeVirt object, where limits are pointers, can set a limit to zero.
func (c Config) limits() queue.Limits {
	l := c.Limits
	l.Cluster, l.Outbound, l.Inbound = cmp.Or(l.Cluster, 5), cmp.Or(l.Outbound, 2), cmp.Or(l.Inbound, 2)
	if c.Cluster != nil {
		if n := c.Cluster.ParallelMigrationsPerCluster; n != nil {
			l.Cluster = int(*n)
		}
		if n := c.Cluster.ParallelOutboundMigrationsPerNode; n != nil {
			l.Outbound = int(*n)
		}
	}
	l.Lent = cmp.Or(l.Lent, l.Cluster)
	return l
}

func (t Timeouts) withDefaults() Timeouts {
	t.Pending = cmp.Or(t.Pending, 24*time.Hour)
	t.Unschedulable = cmp.Or(t.Unschedulable, 300*time.Second)
	t.TargetPod = cmp.Or(t.TargetPod, 900*time.Second)
	t.HandOff = cmp.Or(t.HandOff, 15*time.Minute)
	t.Prepare = cmp.Or(t.Prepare, 5*time.Minute)
	t.Begin = cmp.Or(t.Begin, 5*time.Minute)
	t.Complete = cmp.Or(t.Complete, 15*time.Minute)
	t.Synchronize = cmp.Or(t.Synchronize, time.Hour)
	return t
}
