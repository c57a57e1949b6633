// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

const planUsage = `Usage: refdaemon plan drain NODE [flags]

Tells what would happen if the node were drained now: which guests leave, in which order,
where they could go and how long it takes; which stay, and why. The same decisions are made as
by the controller, about the cluster as it is, on a virtual clock; how fast memory moves and is
written meanwhile has to be assumed.
` + observerRights

// planOptions are the flags of "refdaemon plan".
type planOptions struct {
	observer
	rate, link, dirty string
	horizon           time.Duration
}

// runPlan tells what a drain would do.
func runPlan(ctx context.Context, args []string, out io.Writer) error {
	o := &planOptions{observer: observer{command: "plan"}}
	fs := flag.NewFlagSet("refdaemon plan", flag.ContinueOnError)
	o.flags(fs)
	fs.StringVar(&o.rate, "rate", "125M", "`quantity` of bytes per second that a migration moves where no policy bounds it more narrowly")
	fs.StringVar(&o.link, "link", "0", "`quantity` of bytes per second that a node can send, and as many receive, for all its migrations; 0 is without bound")
	fs.StringVar(&o.dirty, "dirty-rate", "0", "`quantity` of bytes of memory that a guest writes per second")
	fs.DurationVar(&o.horizon, "horizon", 24*time.Hour, "`time` to look ahead")
	words, err := o.parse(fs, args, out, planUsage)
	if err != nil {
		return err
	}
	a, err := o.assumptions()
	if err == nil && (len(words) != 2 || words[0] != "drain" || words[1] == "") {
		err = errors.New(`say what to plan: "drain NODE"`)
	}
	if err != nil {
		return o.wrong(err)
	}
	return o.look(ctx, func(ctx context.Context, r *migrationctrl.Reconciler) error {
		p, err := r.PlanDrain(ctx, words[1], a)
		if err != nil {
			return err
		}
		return o.print(out, p)
	})
}

func (o *planOptions) assumptions() (migrationctrl.Assumptions, error) {
	a := migrationctrl.Assumptions{Queue: o.queue(), Horizon: o.horizon}
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
