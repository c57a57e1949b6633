// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// configUsage is about --config of all commands.
const configUsage = "configuration `file`, of kind %s; flags override it; refdaemon config print-defaults prints one"

// asDaemon makes a command run with a configuration: its defaults, then the file, then the flags.
func asDaemon[C configfile.Configuration](cmd *cobra.Command, kind string, defaults func() C,
	run func(context.Context, C, configfile.Source[C]) error,
) *cobra.Command {
	var (
		source = configfile.Source[C]{New: defaults}
		config C
	)
	cmd.Args = nothing
	configfile.Flags(cmd.Flags(), defaults().Options(), &source.Given)
	cmd.Flags().StringVar(&source.File, "config", "", fmt.Sprintf(configUsage, kind)+", which marks the fields that take effect while the daemon runs")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		config, err = load(cmd, source)
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), config, source) }
	return cmd
}

// load reads a configuration for a command.
func load[C configfile.Configuration](cmd *cobra.Command, source configfile.Source[C]) (C, error) {
	c, err := source.Load()
	if err == nil {
		return c, nil
	}
	err = fmt.Errorf("%s: %w", cmd.Name(), err)
	if faults := (configfile.Faults{}); errors.As(err, &faults) && faults.OfFlags() {
		return c, usageError{err}
	}
	return c, err
}

// follow makes a running daemon watch its configuration file.
func follow[C configfile.Configuration](mgr manager.Manager, w *configfile.Watcher[C]) error {
	if w.Source.File == "" {
		return nil
	}
	w.Log, w.Metrics = ctrl.Log.WithName("config"), configfile.NewReloads()
	return errors.Join(metrics.Registry.Register(w.Metrics), mgr.Add(w))
}
