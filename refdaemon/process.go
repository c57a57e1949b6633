// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/virtloom/virtloom/refdaemon/tracing"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// clientQPS and clientBurst are KubeVirt's limits for its controllers.
const (
	clientQPS   = 200
	clientBurst = 400
)

// process holds what both daemons have in common.
type process struct {
	name       string
	kubeconfig string
	metrics    string
	health     string
	traces     tracing.Options
	leader     bool
	leaderNS   string
	verbose    bool
	// grace is how long the parts may take to end, once the flags are read; nil for
	// controller-runtime's default.
	grace func() time.Duration
	// validate looks at the flags before anything is begun; nil if any will do.
	validate func() error
	// webhooks serves what an API server asks, once the flags are read; nil for nobody.
	webhooks func() webhook.Server
}

// flags registers the common flags.
func (p *process) flags(fs *flag.FlagSet) {
	fs.StringVar(&p.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig `file`; empty uses the service account of the Pod")
	fs.StringVar(&p.metrics, "metrics-address", "0", "`address` to serve metrics at; 0 serves none")
	fs.StringVar(&p.health, "health-address", "0", "`address` to serve /healthz and /readyz at; 0 serves none")
	fs.StringVar(&p.traces.File, "trace-file", "", "`file` to append OpenTelemetry spans to, as JSON; empty records none")
	fs.StringVar(&p.traces.Endpoint, "trace-endpoint", "", "`URL` of an OpenTelemetry collector that takes OTLP over HTTP, such as https://collector.monitoring:4318; empty sends none")
	fs.Float64Var(&p.traces.Share, "trace-share", 1, "`part` of all starts and migrations to tell of, above 0 and at most 1; give all daemons the same")
	fs.BoolVar(&p.verbose, "v", false, "log in detail")
}

// run reads the arguments, makes a manager, lets add register what runs in it,
// and runs it until ctx ends.
func (p *process) run(ctx context.Context, fs *flag.FlagSet, args []string, add func(context.Context, manager.Manager) error) error {
	if err := fs.Parse(args); err != nil {
		return usageError{err}
	}
	if fs.NArg() > 0 {
		return usageError{fmt.Errorf("%s: unexpected argument %q", p.name, fs.Arg(0))}
	}
	if p.validate != nil {
		if err := p.validate(); err != nil {
			return usageError{fmt.Errorf("%s: %w", p.name, err)}
		}
	}
	ctrl.SetLogger(p.logger())
	flush, err := p.tracing(ctx)
	if err != nil {
		return err
	}
	defer flush()
	mgr, err := p.manager()
	if err != nil {
		return err
	}
	if err := add(ctx, mgr); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return mgr.Start(ctx)
}

func (p *process) config() (*rest.Config, error) {
	var (
		c   *rest.Config
		err error
	)
	if p.kubeconfig != "" {
		c, err = clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	} else {
		c, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: connect to the cluster (give --kubeconfig outside of a Pod): %w", p.name, err)
	}
	c.QPS, c.Burst, c.UserAgent = clientQPS, clientBurst, "virtloom-"+p.name
	return c, nil
}

func (p *process) logger() logr.Logger {
	return zap.New(zap.UseDevMode(false), zap.ConsoleEncoder(), zap.Level(zapLevel(p.verbose)))
}

// manager returns a manager with the common settings.
func (p *process) manager() (manager.Manager, error) {
	c, err := p.config()
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	var grace *time.Duration
	if p.grace != nil {
		d := p.grace()
		grace = &d
	}
	var server webhook.Server
	if p.webhooks != nil {
		server = p.webhooks()
	}
	mgr, err := ctrl.NewManager(c, ctrl.Options{
		WebhookServer: server,
		Scheme:        scheme, Logger: ctrl.Log, GracefulShutdownTimeout: grace,
		Metrics:                       metricsserver.Options{BindAddress: p.metrics},
		HealthProbeBindAddress:        p.health,
		LeaderElection:                p.leader,
		LeaderElectionID:              "virtloom-" + p.name,
		LeaderElectionNamespace:       p.leaderNS,
		LeaderElectionReleaseOnCancel: true,
		// Nobody looks at who wrote which field, which is half of many objects.
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		// A replica that does not lead has its caches ready for when it does.
		Controller: ctrlconfig.Controller{EnableWarmup: ptr.To(p.leader)},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: make the manager: %w", p.name, err)
	}
	return mgr, errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", cachesSynced(mgr)))
}

// tracing has spans told of until the returned function is called.
func (p *process) tracing(ctx context.Context) (func(), error) {
	p.traces.Service = "virtloom-" + p.name
	stop, err := tracing.Start(ctx, p.traces)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return func() {
		if err := stop(); err != nil {
			ctrl.Log.Error(err, "Could not write the last spans")
		}
	}, nil
}

// newScheme knows every kind the daemons read or write.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), vmictrl.AddToScheme(s), migrationsv1.AddToScheme(s))
}
