// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// Limits bound how many migrations act at the same time. To an [Admission] a zero is no default:
// with one in Cluster or Outbound no migration may start, with one in Inbound none may be handed
// over. The defaults are those of [Config.WithDefaults].
type Limits struct {
	// Cluster is KubeVirt's parallelMigrationsPerCluster; default 5.
	Cluster int
	// Outbound is KubeVirt's parallelOutboundMigrationsPerNode; default 2.
	Outbound int
	// Inbound bounds the migrations entering one node. KubeVirt has no such
	// limit; default 2.
	Inbound int
	// Lent bounds the migrations that act and have lent their slots because they
	// cannot use them for now, see [Admission]; so there are Cluster and Lent
	// target Pods at most. Default as Cluster, negative means none.
	Lent int
	// Bandwidth is what migrations may take from the network of one node, in each
	// direction, in bytes per second. One without a limit of its own takes all of
	// it; one alone always may. Zero means no budget.
	Bandwidth int64
}

// Timeouts bound the phases. Zero means the default, negative means never.
type Timeouts struct {
	// Pending bounds waiting for the guest, for the queue and for slots: phase
	// Pending, and phase Scheduled while there is no slot at the target, each from
	// its begin. Between clusters also waiting for other migrations of the guest,
	// and a sender's for the receiver's target Pod. Default 24 h.
	Pending time.Duration
	// Unschedulable bounds a target Pod that no node takes, from the creation
	// of the Pod; default 300 s, overridden per migration by the annotation
	// kubevirt.io/migrationUnschedulablePodTimeoutSeconds.
	Unschedulable time.Duration
	// TargetPod bounds a target Pod that is not ready for any reason, from the
	// creation of the Pod; default 900 s, overridden per migration by the
	// annotation kubevirt.io/migrationPendingPodTimeoutSeconds.
	TargetPod time.Duration
	// HandOff bounds phase Scheduled, from when there is a slot at the target node;
	// that is waited for no longer than Pending. Default 15 min.
	HandOff time.Duration
	// Prepare bounds phase PreparingTarget; default 5 min.
	Prepare time.Duration
	// Begin bounds phase TargetReady; default 5 min.
	Begin time.Duration
	// Synchronize bounds what the other cluster is waited for, in migrations between
	// clusters: phases Synchronizing and WaitingForSync, from their begin, and the answer
	// to a wish to abort; default 1 h.
	Synchronize time.Duration
	// Complete bounds what is left to do once the guest is at the target and its node has
	// completed the move: live updates that the migration carries, the claim with the
	// guest's state. Default 15 min, from the end of the move. Afterwards the migration
	// has succeeded all the same.
	Complete time.Duration
	// Running bounds phase Running. Zero means a budget from the resolved
	// completion timeout and the size of the guest's memory, see
	// [Resolution.Budget]. A guest in post-copy cannot come back and is not bound
	// by it.
	Running time.Duration
}

// Config is what the cluster's administrator decides. Its zero value is usable
// after [Config.WithDefaults].
type Config struct {
	// Limits bound parallel migrations. A zero field means its default.
	Limits Limits
	// Timeouts bound the phases.
	Timeouts Timeouts
	// PodsFollowGuests says that somebody keeps the annotations of guests' Pods, as package vmi/vmictrl does, and tells
	// the network where a guest is. Default false: then each target Pod is told when its guest is there.
	PodsFollowGuests bool
	// KeepFinished is how many finished migrations of one guest are kept;
	// older ones are deleted. Default 5, negative keeps all.
	KeepFinished int
	// PodGrace is the grace period, in seconds, with which Pods are deleted that
	// the guest has left or did not reach. Default 1: there is no guest in them
	// that would need time to shut down.
	PodGrace int64
	// Cluster is spec.configuration.migrations of the KubeVirt object; nil
	// means KubeVirt's defaults.
	Cluster *v1.MigrationConfiguration
	// Backoff delays automatic migrations after failures.
	Backoff Backoff
	// AwaitNodes is how long a migration waits when no node can ever match its target
	// Pod. Zero means not at all: the migration fails at once. Negative means that this
	// is not judged: the Pod is made and left to the scheduler, as it must be where an
	// autoscaler makes nodes for Pods that find none.
	AwaitNodes time.Duration
	// Root says that launchers run as root in this cluster: KubeVirt's feature gate Root.
	Root bool
	// AbortBackups says that whoever carries out plans can abort backups, which critical
	// migrations do; they wait for backups like all others otherwise.
	AbortBackups bool
	// Cooldown is how long a guest rests after an automatic migration that succeeded, before an update
	// or a descheduler moves it again. Draining a node does not wait for it. Default 5 min, negative is
	// no rest.
	Cooldown time.Duration
	// Decentralized allows migrations between clusters, see [FeatureGate].
	Decentralized bool
	// Evaluator judges guests; nil means [DefaultChecks].
	Evaluator Evaluator
}

// WithDefaults returns the configuration with each unset field at its default.
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
// Only the KubeVirt object can set a limit to zero: there it is a pointer.
func (c Config) limits() Limits {
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
