// SPDX-License-Identifier: Apache-2.0

// Command refdaemon composes virtloom's packages into three daemons and
// read-only tools:
//
//	refdaemon controller   creates the Pods of VMIs, assigns VMIs to nodes, arbitrates migrations
//	refdaemon node         runs the VMIs of one node in its libvirt
//	refdaemon launcher     runs one VMI in its Pod, with a libvirt of its own
//	refdaemon render       prints the Pods of a VMI or VirtualMachine, from manifests and without a cluster
//	refdaemon convert      prints the libvirt domain of a VMI or VirtualMachine, from manifests
//	refdaemon diff         prints how a running domain differs from its VMI, from files
//	refdaemon explain      explains the state of a VirtualMachine, a VMI, a migration or a node, and how to unblock it
//	refdaemon plan         prints what draining a node would do, without doing it
//	refdaemon dump         writes a cluster into a file, without secrets, for explain and plan
//	refdaemon config       prints the defaults of a configuration file, or checks one
//	refdaemon manifests    prints all manifests for a cluster as one file
//	refdaemon version      prints the build information of this program
//	refdaemon completion   prints shell completion scripts
//
// It is wiring only; all behavior is in packages that can be imported by
// themselves. The configuration of the daemons is package configfile.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, named(os.Args), os.Stdout)
	stop()
	os.Exit(report(err, os.Stderr))
}

// named returns the arguments of a program that was started by one of the launcher's names in KubeVirt's Pods, or by its own.
func named(args []string) []string {
	switch filepath.Base(args[0]) {
	case "virt-launcher-monitor", "virt-launcher":
		return append([]string{"launcher"}, args[1:]...)
	}
	return args[1:]
}

// usageError is an error of the arguments themselves, not of the objects that they name.
type usageError struct{ error }

// Unwrap returns the wrapped error.
func (e usageError) Unwrap() error { return e.error }

// argumentError wraps an error as one of a command's arguments.
func argumentError(cmd *cobra.Command, err error) error {
	name := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
	if name == "" {
		return usageError{fmt.Errorf("%w; %s -h lists the commands", err, cmd.CommandPath())}
	}
	return usageError{fmt.Errorf("%s: %w; see %s -h", name, err, cmd.CommandPath())}
}

// checked adapts a check of positional arguments, or of all flags together, to cobra.
func checked(check func(args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(args); err != nil {
			return argumentError(cmd, err)
		}
		return nil
	}
}

// nothing rejects positional arguments.
var nothing = checked(func(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
})

// report writes an error, line by line, and returns the exit code: 1 for a failure, 2 for wrong arguments, 3 for differences
// found by "refdaemon diff", which are no error.
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

// helpWidth is the line width of flags in help texts.
const helpWidth = "110"

// newRoot makes the program's commands.
func newRoot() *cobra.Command {
	root := group(&cobra.Command{
		Use: "refdaemon", Short: "control plane of virtual machines on Kubernetes, composed of virtloom's packages",
		Long: `refdaemon composes virtloom's packages into daemons and tools: controller serves a cluster,
node one node, launcher one VMI in its Pod. All other commands are read-only.
Exit code 1 means a failure, 2 invalid arguments, 3 differences found by diff.`,
		Example:       "  refdaemon controller -h\n  refdaemon config print-defaults controller",
		SilenceErrors: true, SilenceUsage: true,
	})
	root.SetFlagErrorFunc(argumentError)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages ", "Flags.FlagUsagesWrapped "+helpWidth+" "))
	root.AddCommand(newController(), newNode(), newLauncher(), newRender(), newConvert(), newDiff(), newExplain(), newPlan(), newDump(),
		newConfig(), newInstallation(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// group makes a command that only has subcommands: alone it prints its help.
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
		return argumentError(cmd, fmt.Errorf("unknown command %q; use one of %s", args[0], strings.Join(names, ", ")))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// doubled normalizes the dashes of flags: two for long names, one for letters. Both spellings are
// accepted, as by the standard library's package flag.
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
