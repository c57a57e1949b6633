// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/refdaemon/diagnosis"
)

const planText = `Prints what would happen if the node were drained now: which VMIs leave, in which order, to
which candidate nodes and how long it takes; which stay, and why. The controller's own code
decides about the current cluster on a virtual clock; the rates at which memory is sent and
written are assumptions.
` + observerRights

// planOptions are the flags of "refdaemon plan".
type planOptions struct {
	observer
	rate, link, dirty string
	horizon           time.Duration
}

// newPlan prints what a drain would do.
func newPlan() *cobra.Command {
	o := &planOptions{observer: observer{command: "plan"}}
	cmd := o.observes(&cobra.Command{
		Use: "plan drain NODE", Short: "print what draining a node would do, from a cluster", Long: planText,
		Example: `  refdaemon plan drain node-1 --kubeconfig ~/.kube/config
  refdaemon plan drain node-1 --rate 500M --dirty-rate 50M -o json
  refdaemon plan drain node-1 --config examples/config/controller.yaml
  refdaemon plan drain node-1 --dump cluster.dump.gz`,
		ValidArgsFunction: o.complete("drain"),
		Args: checked(func(args []string) error {
			if len(args) != 2 || args[0] != "drain" || args[1] == "" {
				return errors.New(`specify what to plan: "drain NODE"`)
			}
			return nil
		}),
	})
	fs := cmd.Flags()
	o.dumps(fs)
	fs.StringVar(&o.rate, "rate", "125M", "`quantity` of bytes per second that a migration sends where no policy sets a lower limit")
	fs.StringVar(&o.link, "link", "0", "`quantity` of bytes per second that a node can send, and as many receive, for all its migrations; 0 is unlimited")
	fs.StringVar(&o.dirty, "dirty-rate", "0", "`quantity` of bytes of memory that a guest writes per second")
	fs.DurationVar(&o.horizon, "horizon", 24*time.Hour, "`time` to look ahead")
	var a migrationctrl.Assumptions
	o.further = func() (err error) {
		a, err = o.assumptions()
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.look(cmd.Context(), func(ctx context.Context, c *diagnosis.Cluster) error {
			p, err := c.Migrations.PlanDrain(ctx, args[1], a)
			if err != nil {
				return err
			}
			return printResult(cmd.OutOrStdout(), o.output, p)
		})
	}
	return cmd
}

func (o *planOptions) assumptions() (migrationctrl.Assumptions, error) {
	a := migrationctrl.Assumptions{Queue: queueOptions(&o.config.Migrations), Horizon: o.horizon}
	for _, f := range []struct {
		flag, text string
		value      *float64
		least      float64
	}{{"rate", o.rate, &a.Rate, 1}, {"link", o.link, &a.Link, 0}, {"dirty-rate", o.dirty, &a.Dirty, 0}} {
		q, err := resource.ParseQuantity(f.text)
		if err != nil {
			return a, fmt.Errorf("--%s %q is not a quantity, such as 125M", f.flag, f.text)
		}
		if *f.value = q.AsApproximateFloat64(); *f.value < f.least {
			return a, fmt.Errorf("--%s %s is too small", f.flag, f.text)
		}
	}
	if o.horizon <= 0 {
		return a, fmt.Errorf("--horizon %s is in the past", o.horizon)
	}
	return a, nil
}
