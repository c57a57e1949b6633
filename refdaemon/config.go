// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

func newConfig() *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "config", Short: "print the defaults of a configuration file, or check one",
		Long: `The daemons take a configuration file, --config FILE: YAML, of version ` + configfile.APIVersion + `.
What it does not say has its default, and flags that are given go before it.`,
		Example: "  refdaemon config print-defaults controller > controller.yaml\n  refdaemon config validate controller.yaml",
	})
	cmd.AddCommand(newPrintDefaults(), newValidate())
	return cmd
}

// daemons are the daemons that have a configuration file.
var daemons = map[string]string{"controller": configfile.KindController, "node": configfile.KindNode}

func newPrintDefaults() *cobra.Command {
	return &cobra.Command{
		Use: "print-defaults controller|node", Short: "print a configuration file with all defaults",
		Long: `Prints a configuration file with every field at its default, and a comment at each: what it
is, which flag goes before it, and whether a change takes effect while the daemon runs. What
a node cannot do without has no default: its name, its address, and its certificates.`,
		Example:   "  refdaemon config print-defaults controller\n  refdaemon config print-defaults node > node.yaml",
		ValidArgs: []string{"controller", "node"},
		Args: checked(func(args []string) error {
			if len(args) != 1 || daemons[args[0]] == "" {
				return fmt.Errorf("say of which daemon: controller or node")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return configfile.Print(cmd.OutOrStdout(), configfile.New(daemons[args[0]]))
		},
	}
}

func newValidate() *cobra.Command {
	return &cobra.Command{
		Use: "validate FILE", Short: "check a configuration file",
		Long: `Checks a configuration file, - for standard input, as the daemon does when it starts: that it
has one object of a known kind and version, no field that is unknown or there twice, and no
value that cannot be. All faults are told, with line and field. The name and the address of a
node may be missing: in a file for many nodes they are left to flags.
Exit code 0 means that it is sound, 1 that it is not or cannot be read, 2 that an argument is wrong.`,
		Example: "  refdaemon config validate examples/config/controller.yaml\n  refdaemon config print-defaults controller | refdaemon config validate -",
		Args: checked(func(args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one file; %d are given", len(args))
			}
			return nil
		}),
		RunE: func(_ *cobra.Command, args []string) error {
			content, name, err := readText("config validate", args[0], os.Stdin)
			if err != nil {
				return err
			}
			_, err = configfile.Read(name, content)
			return err
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
}
