// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// observer holds what commands have in common that look at a cluster and change nothing.
type observer struct {
	command string
	config  *configfile.ControllerConfiguration
	output  string
	timeout time.Duration
	// further checks flags of the command's own; nil if there are none.
	further func() error
}

// observes gives a command the configuration of the controller as far as it matters to it.
func (o *observer) observes(cmd *cobra.Command) *cobra.Command {
	source := configfile.Source[*configfile.ControllerConfiguration]{New: configfile.NewController}
	fs := cmd.Flags()
	configfile.Flags(fs, configfile.NewController().Observed(), &source.Given)
	fs.StringVar(&source.File, "config", "", fmt.Sprintf(configUsage, configfile.KindController))
	outputFlag(fs, &o.output, "text", "text or json")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "`time` after which to give up")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		err := known(o.output, "text", "json")
		if err == nil && o.timeout <= 0 {
			err = fmt.Errorf("--timeout %s leaves no time", o.timeout)
		}
		if err != nil {
			return wrong(cmd, err)
		}
		if o.config, err = load(cmd, source); err != nil || o.further == nil {
			return err
		}
		if err := o.further(); err != nil {
			return wrong(cmd, err)
		}
		return nil
	}
	return cmd
}

// look lets a function look at the cluster with caches that are filled when it asks.
func (o *observer) look(ctx context.Context, do func(context.Context, *migrationctrl.Reconciler) error) error {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	p := process{name: o.command, daemon: &o.config.Daemon}
	config, err := p.connect()
	if err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	failed := &firstError{cancel: cancel}
	c, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(), DefaultWatchErrorHandler: failed.note,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	cached, err := client.New(config, client.Options{Scheme: scheme, Cache: &client.CacheOptions{Reader: c}})
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	r, err := newReconciler(o.config, config)
	if err != nil {
		return err
	}
	r.Client, r.APIReader = cached, live
	if err := r.Observe(ctx, c); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	if !c.WaitForCacheSync(ctx) {
		err = fmt.Errorf("%s: the cluster could not be read within %s", o.command, o.timeout)
	} else {
		err = do(ctx, r)
	}
	cancel()
	if err != nil {
		err = failed.instead(err)
	}
	return errors.Join(err, <-ended)
}

// firstError keeps why a cache could not be filled: whoever waits for it hears of it only
// by waiting in vain.
type firstError struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	err    error
}

func (f *firstError) note(_ context.Context, _ *toolscache.Reflector, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		f.cancel()
	}
}

// instead returns the cause, if there is one, instead of what came of it.
func (f *firstError) instead(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return fmt.Errorf("read the cluster: %w", f.err)
	}
	return err
}

// print writes a result in the format asked for.
func (o *observer) print(out io.Writer, result writer) error {
	if err := show(out, o.output, result); err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	return nil
}

const observerRights = `It reads from a cluster and writes nothing. Needed are the rights to list and watch
virtualmachineinstances, virtualmachineinstancemigrations and kubevirts (kubevirt.io),
migrationpolicies (migrations.kubevirt.io), pods, nodes, namespaces, persistentvolumeclaims and
resourcequotas, which "refdaemon controller" has; to get configmaps and
network-attachment-definitions, if guests refer to some. What is set of migrations is to be as the
controller has it: give its file to --config, or its values to the flags --migrations-...
Exit code 1 means that something was not found or could not be read, 2 that an argument is wrong.`
