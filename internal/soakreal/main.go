// SPDX-License-Identifier: Apache-2.0

// Command soakreal soak-tests the daemon on a real control plane: random operations and faults for a long time, and
// then checks for leaks and excessive writes (package soak). It fails on any violation.
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

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/soak"
)

var errWrong = errors.New("something is wrong")

// parse reads the arguments.
func parse(args []string, errOut io.Writer) (o soak.RealOptions, output string, err error) {
	fs := flag.NewFlagSet("soakreal", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.DurationVar(&o.Duration, "duration", time.Hour, "for how long")
	fs.DurationVar(&o.Window, "window", 0, "`time` of operations and faults from one rest to the next; 0 for a twentieth of the duration")
	fs.Uint64Var(&o.Seed, "seed", 1, "`seed` of random operations and faults")
	fs.IntVar(&o.Nodes, "nodes", 4, "number of `nodes`")
	fs.IntVar(&o.Guests, "guests", 15, "maximum number of `VMIs`")
	fs.DurationVar(&o.Pause, "pause", 800*time.Millisecond, "mean `time` between two operations")
	fs.DurationVar(&o.FaultPause, "fault-pause", 8*time.Second, "mean `time` between two faults")
	fs.StringVar(&o.Daemon, "daemon", "", "`path` of refdaemon; empty is the one in the folder of programs")
	fs.BoolVar(&o.Keep, "keep", false, "leave the logs behind")
	verbose := fs.Bool("v", false, "log every step")
	fs.StringVar(&output, "o", "text", "`format` of the report: text or json")
	if err := fs.Parse(args); err != nil {
		return o, output, err
	}
	o.Log = func(format string, args ...any) {
		if *verbose || strings.Contains(fmt.Sprintf(format, args...), "at rest") {
			fmt.Fprintf(errOut, format+"\n", args...)
		}
	}
	if o.Window == 0 {
		o.Window = o.Duration / 20
	}
	if fs.NArg() > 0 {
		return o, output, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return o, output, validate(o, output)
}

// validate returns an error that names an invalid argument.
func validate(o soak.RealOptions, output string) error {
	switch {
	case output != "text" && output != "json":
		return fmt.Errorf("-o %q is neither text nor json", output)
	case min(o.Duration, o.Window, o.Pause, o.FaultPause) <= 0:
		return errors.New("times must be above 0")
	case o.Nodes < 2 || o.Guests < 1:
		return errors.New("at least two nodes and one VMI are required")
	}
	return nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	o, output, err := parse(args, errOut)
	if err != nil {
		return err
	}
	if o.Daemon == "" {
		bin, err := rig.BinDir()
		if err != nil {
			return err
		}
		o.Daemon = filepath.Join(bin, "refdaemon")
	}
	r, err := soak.NewReal(ctx, o)
	if err != nil {
		return err
	}
	report, err := r.Run(ctx)
	err = errors.Join(err, r.Close(context.WithoutCancel(ctx)))
	if output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = errors.Join(err, e.Encode(report))
	} else {
		err = errors.Join(err, report.Print(out))
	}
	if len(report.Wrong) > 0 {
		err = errors.Join(err, fmt.Errorf("%w:\n  %s", errWrong, strings.Join(report.Wrong, "\n  ")))
	}
	return err
}

func main() {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "soakreal:", err)
		}
		os.Exit(1)
	}
}
