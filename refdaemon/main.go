// SPDX-License-Identifier: Apache-2.0

// Command refdaemon is virtloom's packages composed into three daemons and
// tools that change nothing:
//
//	refdaemon controller   decides which Pods guests need, hands guests to nodes, arbitrates migrations
//	refdaemon node         runs the guests of one node in its libvirt
//	refdaemon launcher     runs one guest in its Pod, beside a libvirt of its own
//	refdaemon render       prints the Pods of a guest, from manifests and without a cluster
//	refdaemon convert      prints the libvirt domain of a guest, from manifests
//	refdaemon diff         prints how a running domain differs from what its guest asks for, from files
//	refdaemon explain      tells where a migration stands, behind what, and what ends that, from a cluster
//	refdaemon plan         tells what draining a node would do, from a cluster, and does nothing of it
//
// It is wiring only; every behaviour is in a package that can be imported by
// itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// command is one of the daemon's subcommands.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string, out io.Writer) error
}

func commands() []command {
	return []command{
		{"controller", "run the controllers of the cluster", runController},
		{"node", "run the agent of one node", runNode},
		{"launcher", "serve one guest in its Pod, beside a libvirt daemon of its own", runLauncher},
		{"render", "print a Pod of a guest, from manifests", runRender},
		{"convert", "print the libvirt domain of a guest, from manifests", runConvert},
		{"diff", "print how a running domain differs from its guest, from files", runDiff},
		{"explain", "tell where a migration stands, from a cluster", runExplain},
		{"plan", "tell what draining a node would do, from a cluster", runPlan},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(report(err, os.Stderr))
}

// usageError is a fault of the arguments, not of what they name.
type usageError struct{ error }

// Unwrap returns the fault.
func (e usageError) Unwrap() error { return e.error }

// report writes an error, line by line, and returns the exit code: 1 for a failure, 2 for wrong arguments, 3 for differences
// that "refdaemon diff" has found, which are no error.
func report(err error, out io.Writer) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if errors.Is(err, errDiffers) {
		return exitDiffers
	}
	if code := endedWith(0); errors.As(err, &code) {
		return int(code)
	}
	for line := range strings.Lines(err.Error()) {
		_, _ = fmt.Fprintln(out, "refdaemon:", strings.TrimSuffix(line, "\n"))
	}
	if usage := (usageError{}); errors.As(err, &usage) {
		return 2
	}
	return 1
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage(out)
		return nil
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out)
		}
	}
	var help strings.Builder
	usage(&help)
	return usageError{fmt.Errorf("unknown command %q\n%s", args[0], help.String())}
}

func usage(out io.Writer) {
	_, _ = fmt.Fprintln(out, "Usage: refdaemon COMMAND [flags]\n\nCommands:")
	for _, c := range commands() {
		_, _ = fmt.Fprintf(out, "  %-12s %s\n", c.name, c.about)
	}
	_, _ = fmt.Fprintln(out, "\nrefdaemon COMMAND -h lists the flags of a command.")
}
