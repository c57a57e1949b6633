// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/virtloom/virtloom/refdaemon/dump"
)

const dumpText = `Writes the objects that the controllers decide by into one file, to be explained elsewhere or later:
refdaemon explain and refdaemon plan read it with --dump. It is compressed if its name ends in .gz.

It holds VirtualMachines with their revisions, instance types and preferences, VMIs, migrations, migration policies,
KubeVirt's configuration, Pods, nodes, namespaces, claims, quotas, storage classes, DataVolumes, and the metadata of
the ConfigMaps and NetworkAttachmentDefinitions that VMIs name. It never holds Secrets and the data of ConfigMaps, which
are not read at all; user data and network data of cloud-init; environment, commands, arguments and
probes of containers; sources of imported disks; values of annotations that no decision depends on,
with tokens and kubectl's copies of objects; users, passwords and queries of URLs. A mark replaces each
removed value, and shows only whether two values of the file are equal. It does hold names, labels,
addresses and messages: review it before you share it.
` + observerRights

// newDump writes the state of a cluster into a file.
func newDump() *cobra.Command {
	o := &observer{command: "dump"}
	cmd := o.observes(&cobra.Command{
		Use: "dump FILE", Short: "write the objects that controllers decide by into a file, without secrets", Long: dumpText,
		Example: `  refdaemon dump cluster.dump.gz --kubeconfig ~/.kube/config
  refdaemon explain vmi shop/web --dump cluster.dump.gz`,
		Args: checked(func(args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("specify the FILE to write")
			}
			return nil
		}),
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
		defer cancel()
		d, err := o.picture(ctx)
		if err == nil {
			err = d.Complete(ctx)
		}
		if err == nil {
			err = d.WriteFile(args[0])
		}
		if err != nil {
			return err
		}
		return printResult(cmd.OutOrStdout(), o.output, &dumped{File: args[0], TakenAt: d.TakenAt.UTC(), Kinds: d.Kinds()})
	}
	return cmd
}

// dumped summarizes a dump file.
type dumped struct {
	File    string      `json:"file"`
	TakenAt time.Time   `json:"takenAt"`
	Kinds   []dump.Kind `json:"kinds"`
}

// Write prints the summary as text.
func (d *dumped) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "Wrote %s, as of %s\n", d.File, d.TakenAt.Format(time.RFC3339))
	for _, k := range d.Kinds {
		what := ""
		switch {
		case k.Missing != "":
			what = "  not read: " + k.Missing
		case k.Metadata:
			what = "  metadata only"
		}
		_, _ = fmt.Fprintf(w, "%6d\t%s%s\n", k.Objects, k.Kind, what)
	}
	return w.Flush()
}
