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
//	refdaemon explain      tells where a guest, a migration or a node stands, why, and what mends that
//	refdaemon plan         tells what draining a node would do, and does nothing of it
//	refdaemon dump         writes a cluster into a file, without secrets, for explain and plan
//	refdaemon config       prints the defaults of a configuration file, or checks one
//	refdaemon version      tells what this program was built from
//	refdaemon completion   prints what lets a shell complete all these
//
// It is wiring only; every behaviour is in a package that can be imported by
// itself. What the daemons run with is package configfile.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

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

// wrong says that an argument of a command is.
func wrong(cmd *cobra.Command, err error) error {
	name := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
	if name == "" {
		return usageError{fmt.Errorf("%w; %s -h lists the commands", err, cmd.CommandPath())}
	}
	return usageError{fmt.Errorf("%s: %w; %s -h tells how", name, err, cmd.CommandPath())}
}

// checked is a check of what is not a flag, or of all flags together.
func checked(check func(args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(args); err != nil {
			return wrong(cmd, err)
		}
		return nil
	}
}

// nothing is for commands with flags only.
var nothing = checked(func(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
})

// report writes an error, line by line, and returns the exit code: 1 for a failure, 2 for wrong arguments, 3 for differences
// that "refdaemon diff" has found, which are no error.
func report(err error, out io.Writer) int {
	if err == nil {
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
	root := newRoot()
	root.SetOut(out)
	root.SetErr(io.Discard) // errors are reported once, by main
	root.SetArgs(doubled(root, args))
	return root.ExecuteContext(ctx)
}

// helpWidth is how long the lines of flags in help are.
const helpWidth = "110"

// newRoot makes the program's commands.
func newRoot() *cobra.Command {
	root := group(&cobra.Command{
		Use: "refdaemon", Short: "virtloom's packages composed: the control plane of virtual machines on Kubernetes",
		Long: `refdaemon is virtloom's packages composed into daemons and tools: controller decides for a
cluster, node serves one node, launcher one guest in its Pod. The others change nothing.
Exit code 1 means a failure, 2 wrong arguments, 3 differences that diff has found.`,
		Example:       "  refdaemon controller -h\n  refdaemon config print-defaults controller",
		SilenceErrors: true, SilenceUsage: true,
	})
	root.SetFlagErrorFunc(wrong)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages ", "Flags.FlagUsagesWrapped "+helpWidth+" "))
	root.AddCommand(newController(), newNode(), newLauncher(), newRender(), newConvert(), newDiff(), newExplain(), newPlan(), newDump(), newConfig(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// group makes a command that only has others: alone it tells which.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return wrong(cmd, fmt.Errorf("unknown command %q; there are %s", args[0], strings.Join(names, ", ")))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// doubled gives flags of one dash that have a long name a second one, and takes it from letters
// that have two: both were taken once, as the standard library's package flag does.
func doubled(root *cobra.Command, args []string) []string {
	if len(args) == 0 {
		return args
	}
	cmd, _, err := root.Find(args[:1])
	if err != nil || cmd == root {
		return args
	}
	out := append([]string{}, args...)
	for i, arg := range out {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch dashes := len(arg) - len(strings.TrimLeft(arg, "-")); {
		case dashes == 1 && len(name) > 1 && cmd.Flags().Lookup(name) != nil:
			out[i] = "-" + arg
		case dashes == 2 && len(name) == 1 && cmd.Flags().ShorthandLookup(name) != nil:
			out[i] = arg[1:]
		}
	}
	return out
}
