// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// Options describe a cluster. The zero value is usable.
type Options struct {
	// Seed is the seed of all random values.
	Seed uint64
	// Start is the initial virtual time; default is the first day of 2026.
	Start time.Time
	// Config is the controller's configuration.
	Config migration.Config
	// Queue configures the queue.
	Queue queue.Options
	// Policies are the MigrationPolicies, NamespaceLabels the labels that they select by.
	Policies        []v1alpha1.MigrationPolicy
	NamespaceLabels map[string]map[string]string
	// Quotas are the ResourceQuotas. Their usage follows the Pods that are created and deleted.
	Quotas []corev1.ResourceQuota
	// Rate is the bandwidth, in bytes per second, of a migration without a lower limit by
	// policy; default 1e9/8, a network of 1 Gbit/s.
	Rate float64
	// Link is the bandwidth of a node for all its migrations, in bytes per second in each
	// direction. Zero means that migrations do not slow each other down.
	Link float64
	// EvictionStrategy is the cluster's, for VMIs without one; nil means None.
	EvictionStrategy *v1.EvictionStrategy
	// Latency holds the latencies of the components.
	Latency Latency
	// Render returns the target Pod of a migration, with a name that is the same for the
	// same migration. Default is a Pod with the selectors, tolerations, affinity, labels and
	// requests of the Pod that the VMI leaves.
	Render func(*v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigration, *corev1.Pod) (*corev1.Pod, error)
	// PingPong is the time within which a VMI that comes back to a node counts as a
	// ping-pong, see [PingPong]; default is Config.Cooldown.
	PingPong time.Duration
}

// Latency holds the latencies of the components of a cluster. Zero means the default, negative
// none.
type Latency struct {
	// Watch is from a write until its watchers observe it; default 20 ms.
	Watch time.Duration
	// Schedule is until a Pod is bound to a node; default 50 ms.
	Schedule time.Duration
	// PodStart is from then until it is ready; default 2 s. PodStop is until a
	// deleted one is gone; default 1 s.
	PodStart, PodStop time.Duration
	// Prepare is until the target node is ready to receive; default 500 ms.
	Prepare time.Duration
	// Begin is until the source node sends, or reacts to a request while it
	// does; default 200 ms.
	Begin time.Duration
	// TakeOver is from the end of the transfer until the VMI is known to run on the
	// target, and again until the target has completed the migration; default 100 ms.
	TakeOver time.Duration
	// Jitter is the maximum share by which each may be longer; default 0.2.
	Jitter float64
}

func (l Latency) withDefaults() Latency {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&l.Watch, 20 * time.Millisecond},
		{&l.Schedule, 50 * time.Millisecond},
		{&l.PodStart, 2 * time.Second},
		{&l.PodStop, time.Second},
		{&l.Prepare, 500 * time.Millisecond},
		{&l.Begin, 200 * time.Millisecond},
		{&l.TakeOver, 100 * time.Millisecond},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
		*f.field = max(*f.field, 0)
	}
	if l.Jitter == 0 {
		l.Jitter = 0.2
	}
	l.Jitter = max(l.Jitter, 0)
	return l
}

func (o Options) withDefaults() Options {
	if o.Start.IsZero() {
		o.Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	o.Config = o.Config.WithDefaults()
	if o.Rate <= 0 {
		o.Rate = 1e9 / 8
	}
	o.Latency = o.Latency.withDefaults()
	if o.Render == nil {
		o.Render = targetLike
	}
	if o.PingPong == 0 {
		o.PingPong = o.Config.Cooldown
	}
	return o
}

// random returns the source of all random values.
func (o Options) random() *rand.Rand { return rand.New(rand.NewPCG(o.Seed, 0x76697274)) }
