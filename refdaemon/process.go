// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/refdaemon/events"
	"github.com/virtloom/virtloom/refdaemon/health"
	"github.com/virtloom/virtloom/refdaemon/metricsauth"
	"github.com/virtloom/virtloom/refdaemon/tracing"
	"github.com/virtloom/virtloom/vm/vmctrl"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// process is the common part of both daemons.
type process struct {
	name   string
	daemon *configfile.Daemon
	level  uberzap.AtomicLevel
	// election is nil for daemons without leader election.
	election *configfile.LeaderElection
	// grace is the grace period of the runnables; nil for controller-runtime's default.
	grace *time.Duration
	// webhooks serves admission webhooks; nil for none.
	webhooks webhook.Server
	// cached holds the cache options of single kinds.
	cached map[client.Object]cache.ByObject
}

// newProcess returns a daemon with its configuration.
func newProcess(name string, daemon *configfile.Daemon) process {
	return process{name: name, daemon: daemon, level: uberzap.NewAtomicLevelAt(zapLevel(daemon.Log.Verbosity))}
}

// zapLevel returns the level that enables V(verbosity).
func zapLevel(verbosity int) zapcore.Level {
	return zapcore.Level(-min(verbosity, 127)) //nolint:gosec // it is bounded
}

// run makes a manager, lets add register what runs in it, and runs it until ctx ends.
func (p *process) run(ctx context.Context, add func(context.Context, manager.Manager) error) error {
	ctrl.SetLogger(newLogger(p.level))
	flush, err := p.tracing(ctx)
	if err != nil {
		return err
	}
	defer flush()
	emitting, stop := context.WithCancel(context.WithoutCancel(ctx)) // events of the shutdown are emitted too
	defer stop()
	mgr, err := p.manager(emitting)
	if err != nil {
		return err
	}
	if err := add(ctx, mgr); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return mgr.Start(ctx)
}

// connect returns the client configuration of the cluster.
func (p *process) connect() (*rest.Config, error) {
	var (
		c   *rest.Config
		err error
	)
	if file := cmp.Or(p.daemon.Client.Kubeconfig, os.Getenv("KUBECONFIG")); file != "" {
		c, err = clientcmd.BuildConfigFromFlags("", file)
	} else {
		c, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: connect to the cluster (set --kubeconfig outside of a Pod): %w", p.name, err)
	}
	c.QPS, c.Burst, c.UserAgent = float32(p.daemon.Client.QPS), p.daemon.Client.Burst, "virtloom-"+p.name
	return c, nil
}

func newLogger(level uberzap.AtomicLevel) logr.Logger {
	return zap.New(zap.UseDevMode(false), zap.ConsoleEncoder(), zap.Level(level))
}

// manager returns a manager with the common settings.
func (p *process) manager(ctx context.Context) (manager.Manager, error) {
	c, err := p.connect()
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	o := ctrl.Options{
		WebhookServer: p.webhooks,
		Scheme:        scheme, Logger: ctrl.Log, GracefulShutdownTimeout: p.grace,
		Metrics:                metricsauth.Metrics(p.daemon.Metrics),
		HealthProbeBindAddress: metricsauth.Address(p.daemon.Health.Address),
		PprofBindAddress:       metricsauth.Address(p.daemon.Profiling.Address),
		// Managed fields are never read, and are half of many objects.
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: p.cached},
	}
	lease := p.elect(&o, c)
	mgr, err := ctrl.NewManager(c, o)
	if err != nil {
		return nil, fmt.Errorf("%s: make the manager: %w", p.name, err)
	}
	if err := addHealth(mgr, lease); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	broadcaster, err := events.Start(logr.NewContext(ctx, ctrl.Log), c, events.Rate{QPS: float32(p.daemon.Events.QPS), Burst: p.daemon.Events.Burst})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return events.Manager{Manager: mgr, Events: broadcaster}, nil
}

// addHealth adds the probes of the manager; lease is nil without leader election.
func addHealth(mgr manager.Manager, lease *health.Contact) error {
	passes, err := health.Passes(metrics.Registry)
	if err != nil {
		return err
	}
	workers := &health.Workers{Passes: passes, Log: ctrl.Log.WithName("health")}
	err = errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddHealthzCheck("workers", workers.Alive),
		mgr.AddReadyzCheck("caches", health.Caches(mgr.GetCache())))
	if lease != nil {
		err = errors.Join(err, mgr.AddReadyzCheck("lease", lease.Check))
	}
	return err
}

// elect configures leader election, if enabled, and returns the contact with the lease; nil without
// one. A standby replica keeps its caches synced.
func (p *process) elect(o *ctrl.Options, c *rest.Config) *health.Contact {
	if p.election == nil || !p.election.Enabled {
		return nil
	}
	lease := &health.Contact{}
	o.LeaderElectionConfig = rest.CopyConfig(c)
	o.LeaderElectionConfig.Wrap(lease.Wrap)
	o.LeaderElection = true
	o.LeaderElectionID = "virtloom-" + p.name
	o.LeaderElectionNamespace = p.election.Namespace
	o.LeaderElectionReleaseOnCancel = true
	o.Controller = ctrlconfig.Controller{EnableWarmup: ptr.To(true)}
	return lease
}

// tracing exports spans until the returned function is called.
func (p *process) tracing(ctx context.Context) (func(), error) {
	t := p.daemon.Tracing
	stop, err := tracing.Start(ctx, tracing.Options{
		Service: "virtloom-" + p.name, File: t.File, Endpoint: t.Endpoint, Share: t.Share,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return func() {
		if err := stop(); err != nil {
			ctrl.Log.Error(err, "Exporting the last spans failed")
		}
	}, nil
}

// newScheme returns a scheme with every kind that the daemons read or write.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), vmictrl.AddToScheme(s), vmctrl.AddToScheme(s), migrationsv1.AddToScheme(s))
}
