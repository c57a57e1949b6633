// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
)

// migrations are the flags of "refdaemon controller" about migrations that KubeVirt's
// own configuration has no field for.
type migrations struct {
	inbound, lent int
	bandwidth     string
	ageAfter      time.Duration
	unfair        bool
	weights       weights
	pending       time.Duration
	awaitNodes    time.Duration
	cooldown      time.Duration
	abortBackups  bool
}

// weights is a flag with shares of namespaces.
type weights map[string]float64

// String implements flag.Value.
func (w *weights) String() string { return "" }

// Set implements flag.Value; given twice, the flag adds up.
func (w *weights) Set(text string) error {
	if *w == nil {
		*w = weights{}
	}
	for _, part := range strings.Split(text, ",") {
		namespace, share, found := strings.Cut(part, "=")
		n, err := strconv.ParseFloat(share, 64)
		if !found || namespace == "" || err != nil || !(n > 0) || math.IsInf(n, 1) {
			return fmt.Errorf("%q is not NAMESPACE=SHARE with a share above 0", part)
		}
		(*w)[namespace] = n
	}
	return nil
}

func (o *migrations) flags(fs *flag.FlagSet) {
	fs.IntVar(&o.inbound, "migrations-inbound-per-node", 2, "how many `migrations` may enter one node at a time; KubeVirt's configuration has the limits of the cluster and of leaving a node")
	fs.IntVar(&o.lent, "migrations-lent", 0, "how many `migrations` may lend their slots to others while no node takes their target Pod, or the node has no slot; 0 is as many as the cluster has slots, -1 none")
	fs.StringVar(&o.bandwidth, "migrations-bandwidth-per-node", "", "`quantity` of bytes per second that migrations may take from a node's network in each direction, such as 1Gi; empty is no budget")
	fs.DurationVar(&o.ageAfter, "migrations-age-after", 10*time.Minute, "`time` after which a migration that waits counts as of the next higher priority; negative is never")
	fs.BoolVar(&o.unfair, "migrations-unfair", false, "let priority and age alone decide, without turns between namespaces")
	fs.Var(&o.weights, "migrations-namespace-weights", "`shares` of namespaces among migrations of one priority, as NAMESPACE=SHARE by commas; the others have 1")
	fs.DurationVar(&o.pending, "migrations-pending-timeout", 24*time.Hour, "`time` after which a migration that could not start fails; negative is never")
	fs.DurationVar(&o.awaitNodes, "migrations-await-nodes", 0, "`time` to wait for nodes when none can ever match a target Pod, instead of failing at once; negative leaves it to the scheduler, as an autoscaler of nodes needs it")
	fs.DurationVar(&o.cooldown, "migrations-cooldown", 5*time.Minute, "`time` for which a guest that was migrated by itself rests before an update or a descheduler moves it again; negative is none")
	fs.BoolVar(&o.abortBackups, "migrations-abort-backups", false, "let critical migrations abort backups of their guests by KubeVirt's virt-api, which has to be there; without, they wait for them")
}

// check tells which flags are wrong.
func (o *migrations) check() error {
	if o.inbound < 1 {
		return fmt.Errorf("--migrations-inbound-per-node %d: no migration could ever enter a node; give 1 or more", o.inbound)
	}
	if _, err := o.budget(); err != nil {
		return err
	}
	return nil
}

// budget is the bandwidth of a node in bytes per second.
func (o *migrations) budget() (int64, error) {
	if o.bandwidth == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(o.bandwidth)
	if err != nil || q.Sign() <= 0 {
		return 0, fmt.Errorf("--migrations-bandwidth-per-node %q is not a quantity above 0, such as 500Mi", o.bandwidth)
	}
	return q.Value(), nil
}

// config is what the flags say.
func (o *migrations) config() migration.Config {
	budget, _ := o.budget() // checked before
	return migration.Config{
		Limits:   migration.Limits{Inbound: o.inbound, Lent: o.lent, Bandwidth: budget},
		Timeouts: migration.Timeouts{Pending: o.pending}, AwaitNodes: o.awaitNodes, Cooldown: o.cooldown,
	}
}

// aborter is who aborts backups; nil if nobody does.
func (o *migrations) aborter(c *rest.Config) (migrationctrl.BackupAborter, error) {
	if !o.abortBackups {
		return nil, nil //nolint:nilnil // nobody is an answer
	}
	return migrationctrl.NewVirtAPI(c)
}

func (o *controllerOptions) addMigration(ctx context.Context, mgr ctrl.Manager) error {
	own, err := writes("migration")
	if err != nil {
		return err
	}
	moves := migrationctrl.NewMetrics()
	if err := metrics.Registry.Register(moves); err != nil {
		return fmt.Errorf("register the metrics of migrations: %w", err)
	}
	config := o.migrations.config()
	o.reconciler = &migrationctrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		LauncherImage: o.launcherImage, Observer: own, Metrics: moves, Config: config,
		Admission: migration.NewAdmission(config.WithDefaults().Limits, o.queue()),
		Recorder:  mgr.GetEventRecorder("virtualmachine-migration-controller"),
	}
	if o.reconciler.Backups, err = o.aborter(mgr.GetConfig()); err != nil {
		return err
	}
	return o.reconciler.SetupWithManager(ctx, mgr)
}
