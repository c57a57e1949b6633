// SPDX-License-Identifier: Apache-2.0

// Command benchscale measures "refdaemon controller" under load, beside what KubeVirt's virt-controller
// needs for the same: it starts a control plane with simulated nodes on this machine, creates guests,
// migrates some, lets many migrations wait, and counts what that takes and what is asked of the API
// server. A stand-in answers for the nodes at once. "make bench-scale" builds it and the daemon it runs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// Kinds of what is created.
const (
	kindGuest   = "vmi"
	kindMachine = "vm"
)

// options are the flags.
type options struct {
	guests, moves, waiting, cached, nodes int
	idle, within                          time.Duration
	output, profiles, daemon, kind, stock string
	floor, check, verbose, keep           bool
	// daemonArgs are further arguments of the controller.
	daemonArgs []string
}

// errMissed means that figures are above their limits.
var errMissed = errors.New("limits were missed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "Interrupted; everything was removed.")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

// parse reads the flags.
func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("benchscale", flag.ContinueOnError)
	fs.StringVar(&o.kind, "kind", "vmi", "`kind` of what is created: vmi, or vm, for which as many guests without VirtualMachines are measured before")
	fs.StringVar(&o.stock, "stock", "", "`path` of KubeVirt's virt-controller, which then starts the VirtualMachines as well; empty for none")
	fs.IntVar(&o.guests, "n", 1000, "how many `guests` are created; 0 for none")
	fs.IntVar(&o.moves, "m", 200, "how many of them are migrated at once; 0 for none")
	fs.IntVar(&o.waiting, "waiting", 0, "how many `migrations` then wait for 5 slots; 0 for none")
	fs.IntVar(&o.cached, "cached", 0, "how many `guests` at rest a controller has in its caches, on a cluster of their own; 0 for none")
	fs.IntVar(&o.nodes, "nodes", 100, "how many simulated `nodes` there are")
	fs.DurationVar(&o.idle, "idle", 20*time.Second, "`time` for which a controller is looked at while all wait")
	fs.DurationVar(&o.within, "within", 30*time.Minute, "`time` for all of it")
	fs.StringVar(&o.output, "o", "text", "`format` of the report: text or json")
	fs.StringVar(&o.profiles, "profiles", "", "`folder` for profiles of the controller; empty takes none")
	fs.StringVar(&o.daemon, "daemon", "", "`path` of refdaemon; empty is the one in the folder of programs")
	fs.BoolVar(&o.floor, "floor", false, "measure first, on a cluster of its own, how fast -n guests could be by a client that decides nothing")
	fs.BoolVar(&o.check, "check", false, "fail if a figure is above its limit")
	fs.BoolVar(&o.keep, "keep", false, "leave the logs behind, with the bodies of what was written in audit.log, which costs the API server time")
	fs.BoolVar(&o.verbose, "v", false, "log each step")
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "Usage: benchscale [FLAGS] [-- FLAGS OF REFDAEMON CONTROLLER]")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.daemonArgs = fs.Args()
	moves := false
	fs.Visit(func(f *flag.Flag) { moves = moves || f.Name == "m" })
	if o.kind == kindMachine && !moves {
		o.moves = 0
	}
	return o, o.validate()
}

// validate returns an error that names invalid flags.
func (o *options) validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(min(o.guests, o.moves, o.waiting, o.cached) < 0, "numbers cannot be negative")
	bad(o.guests+o.cached == 0, "there is nothing to measure: give -n or -cached")
	bad(o.moves > o.guests, "-m %d migrations need as many guests, -n is %d", o.moves, o.guests)
	bad(o.waiting > o.guests, "-waiting %d migrations need as many guests, -n is %d", o.waiting, o.guests)
	bad(o.kind != kindGuest && o.kind != kindMachine, "-kind %q is neither vmi nor vm", o.kind)
	bad(o.kind == kindMachine && (o.moves+o.waiting+o.cached > 0 || o.floor), "-kind vm measures how VirtualMachines start: leave out -m, -waiting, -cached and -floor")
	bad(o.kind != kindMachine && o.stock != "", "-stock starts VirtualMachines: give -kind vm")
	bad(o.nodes < 2, "-nodes %d: no guest could be moved", o.nodes)
	bad(o.idle <= 0 || o.within <= 0, "-idle and -within have to be times above 0")
	bad(o.output != "text" && o.output != "json", "-o %q is neither text nor json", o.output)
	bad(len(o.daemonArgs) > 0 && !strings.HasPrefix(o.daemonArgs[0], "-"), "unexpected argument %q", o.daemonArgs)
	return errors.Join(errs...)
}

// run measures what the arguments ask for and writes the report to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.daemon == "" {
		bin, err := rig.BinDir()
		if err != nil {
			return err
		}
		o.daemon = filepath.Join(bin, "refdaemon")
	}
	if o.profiles != "" {
		if err := os.MkdirAll(o.profiles, 0o755); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.within, fmt.Errorf("not done within %s", o.within))
	defer cancel()
	r := &Report{}
	if o.kind == kindMachine {
		err = measureMachines(ctx, o, out, r)
	} else {
		err = measure(ctx, o, out, r)
	}
	if o.output == "json" && err == nil {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	}
	if missed := r.missed(); err == nil && o.check && len(missed) > 0 {
		err = fmt.Errorf("%w:\n  %s", errMissed, strings.Join(missed, "\n  "))
	}
	return err
}

// measure runs the phases, those that have guests in common on one control plane.
func measure(ctx context.Context, o options, out io.Writer, r *Report) error {
	if o.floor {
		err := on(ctx, o, out, func(ctx context.Context, b *bench) error {
			p, err := b.floor(ctx, o.guests)
			return b.report(r, p, err)
		})
		if err != nil {
			return err
		}
	}
	if o.guests > 0 {
		if err := on(ctx, o, out, func(ctx context.Context, b *bench) error { return b.load(ctx, r) }); err != nil {
			return err
		}
	}
	if o.cached == 0 {
		return nil
	}
	return on(ctx, o, out, func(ctx context.Context, b *bench) error {
		p, err := b.cached(ctx, o.cached)
		return b.report(r, p, err)
	})
}

// on runs part of the measurement on a control plane of its own.
func on(ctx context.Context, o options, out io.Writer, do func(context.Context, *bench) error) error {
	b, err := newBench(ctx, o, out)
	if err != nil {
		return err
	}
	err = do(ctx, b)
	return errors.Join(err, b.close(context.WithoutCancel(ctx), err))
}

// load creates guests, and moves them.
func (b *bench) load(ctx context.Context, r *Report) (err error) {
	o := b.options
	if b.daemon, err = b.startDaemon(ctx); err != nil {
		return err
	}
	p, err := b.start(ctx, phaseGuests, o.guests, func(i int) client.Object { return newGuest(i) })
	if err := b.report(r, p, err); err != nil || o.moves+o.waiting == 0 {
		return err
	}
	if err := b.run(ctx, o.guests); err != nil {
		return err
	}
	if o.moves > 0 {
		p, err := b.migrations(ctx, o.moves)
		if err := b.report(r, p, err); err != nil {
			return err
		}
	}
	if o.waiting > 0 {
		p, err := b.wait(ctx, o.waiting)
		if err := b.report(r, p, err); err != nil {
			return err
		}
	}
	return b.daemon.stop()
}

// report adds a phase to the report, unless it failed, and prints it.
func (b *bench) report(r *Report, p Phase, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	p.compare(r)
	r.Phases = append(r.Phases, p)
	if b.options.output != "text" {
		return nil
	}
	fmt.Fprintln(b.out, p.line())
	return p.table(b.out)
}
