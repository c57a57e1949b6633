// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/refdaemon/diagnosis"
	"github.com/virtloom/virtloom/refdaemon/dump"
)

// observer is the common part of read-only commands on a cluster.
type observer struct {
	command string
	source  configfile.Source[*configfile.ControllerConfiguration]
	config  *configfile.ControllerConfiguration
	output  string
	timeout time.Duration
	// dump is the file to read instead of a cluster; empty for the cluster.
	dump string
	// controller is the controller to ask for its view; none if its URL is empty.
	controller cachestate.Client
	// further checks the command's own flags; nil if there are none.
	further func() error
}

// observes adds the flags of the controller's configuration that matter to a command.
func (o *observer) observes(cmd *cobra.Command) *cobra.Command {
	o.source.New = configfile.NewController
	fs := cmd.Flags()
	configfile.Flags(fs, configfile.NewController().Observed(), &o.source.Given)
	fs.StringVar(&o.source.File, "config", "", fmt.Sprintf(configUsage, configfile.KindController))
	outputFlag(fs, &o.output, "text", "text or json")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "`time` after which to give up")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		err := checkOutputFormat(o.output, "text", "json")
		if err == nil && o.timeout <= 0 {
			err = fmt.Errorf("--timeout %s leaves no time", o.timeout)
		}
		if err != nil {
			return argumentError(cmd, err)
		}
		if o.config, err = load(cmd, o.source); err != nil || o.further == nil {
			return err
		}
		if err := o.further(); err != nil {
			return argumentError(cmd, err)
		}
		return nil
	}
	return cmd
}

// dumps adds the flag to read a dump.
func (o *observer) dumps(fs *pflag.FlagSet) {
	fs.StringVar(&o.dump, "dump", "", "`file` of refdaemon dump to read instead of a cluster")
}

// look runs a function on a snapshot of a cluster, or on a dump.
func (o *observer) look(ctx context.Context, do func(context.Context, *diagnosis.Cluster) error) error {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	d, err := o.picture(ctx)
	if err != nil {
		return err
	}
	c, err := o.observing(ctx, d)
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	if err := do(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	return nil
}

// picture returns a snapshot of the cluster, or the dump.
func (o *observer) picture(ctx context.Context) (*dump.Dump, error) {
	if o.dump != "" {
		return o.file()
	}
	live, err := o.live()
	if err != nil {
		return nil, err
	}
	d, err := dump.Take(ctx, dump.Cluster{Client: live, Now: time.Now()})
	if err != nil {
		return nil, fmt.Errorf("%s: read the cluster: %w", o.command, err)
	}
	return d, nil
}

// file reads the dump of a cluster.
func (o *observer) file() (*dump.Dump, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	d, err := dump.ReadFile(o.dump, scheme)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.command, err)
	}
	return d, nil
}

// live reads from the cluster.
func (o *observer) live() (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	p := process{name: o.command, daemon: &o.config.Daemon}
	config, err := p.connect()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.command, err)
	}
	return c, nil
}

// observing sets up the controllers' own code on a snapshot, with the clock at its time.
func (o *observer) observing(ctx context.Context, d *dump.Dump) (*diagnosis.Cluster, error) {
	now := moment(d.TakenAt)
	moves, err := newReconciler(o.config, &rest.Config{}) // it sends no request
	if err != nil {
		return nil, err
	}
	guests, machines := newVMIs(o.config), newMachines(o.config)
	moves.Client, moves.APIReader, moves.Clock = d.Client(), d, now
	guests.Client, guests.APIReader, guests.Clock = d.Client(), d, now
	if err := errors.Join(guests.Observe(ctx, d), moves.Observe(ctx, d)); err != nil {
		return nil, err
	}
	if machines != nil {
		machines.Client, machines.APIReader, machines.Clock = d.Client(), d, now
		if err := machines.Observe(ctx, d); err != nil {
			return nil, err
		}
	}
	c := &diagnosis.Cluster{Machines: machines, VMIs: guests, Migrations: moves, Reader: d, Now: d.TakenAt, SilentAfter: o.config.NodeSilentAfter.Duration, Settings: o.config.Decisive()}
	if o.controller.URL != "" {
		c.Ask = o.controller.Ask
	}
	return c, nil
}

// moment is a stopped clock.
type moment time.Time

// Now is part of clock.PassiveClock.
func (m moment) Now() time.Time { return time.Time(m) }

// Since is part of clock.PassiveClock.
func (m moment) Since(t time.Time) time.Duration { return time.Time(m).Sub(t) }

const observerRights = `It reads from a cluster, or with --dump from a file of "refdaemon dump", and writes nothing. It needs
the rights to list virtualmachines, virtualmachineinstances, virtualmachineinstancemigrations and
kubevirts (kubevirt.io), migrationpolicies (migrations.kubevirt.io), pods, nodes, namespaces,
persistentvolumeclaims, resourcequotas, storageclasses, controllerrevisions (apps) and, where the
cluster has them, instance types and preferences (instancetype.kubevirt.io) and the kinds of CDI; to get configmaps and network-attachment-definitions, if VMIs
refer to some; "refdaemon controller" has all of these. Migration settings must be those of the
controller: pass its file to --config, or its values to the flags --migrations-...
Exit code 0 means that the command succeeded, whatever was found; 1 that an object does not exist or
cannot be read, 2 that an argument is wrong.`
