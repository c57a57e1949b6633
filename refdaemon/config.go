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
Absent fields have their defaults, and flags override the file.`,
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
		Long: `Prints a configuration file with every field at its default and a comment for each: its
meaning, the flag that overrides it, and whether a change takes effect while the daemon runs.
The required fields of a node have no default: its name, its address, and its certificates.`,
		Example:   "  refdaemon config print-defaults controller\n  refdaemon config print-defaults node > node.yaml",
		ValidArgs: []string{"controller", "node"},
		Args: checked(func(args []string) error {
			if len(args) != 1 || daemons[args[0]] == "" {
				return fmt.Errorf("specify one daemon: controller or node")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			return configfile.Print(cmd.OutOrStdout(), configfile.NewConfiguration(daemons[args[0]]))
		},
	}
}

func newValidate() *cobra.Command {
	return &cobra.Command{
		Use: "validate FILE", Short: "check a configuration file",
		Long: `Checks a configuration file, - for standard input, as the daemon does when it starts: that it
has one object of a known kind and version, no unknown or duplicate field, and no invalid
value. All faults are reported, with line and field. The name and the address of a node may
be missing: in a file for several nodes they are left to flags.
Exit code 0 means that it is valid, 1 that it is invalid or cannot be read, 2 that an argument is wrong.`,
		Example: "  refdaemon config validate examples/config/controller.yaml\n  refdaemon config print-defaults controller | refdaemon config validate -",
		Args: checked(func(args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("specify one file; got %d", len(args))
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
