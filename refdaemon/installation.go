// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/refdaemon/config"
)

func newInstallation() *cobra.Command {
	return &cobra.Command{
		Use: "manifests", Short: "print all manifests for a cluster as one file",
		Long: `Prints what kustomize builds of refdaemon/config/default: the definitions of KubeVirt's kinds, roles,
policies, webhooks and both daemons, in an order in which they can be created.`,
		Example: "  refdaemon manifests > virtloom.yaml\n  refdaemon manifests | kubectl apply --server-side --force-conflicts -f -",
		Args:    nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := config.Manifests()
			if err != nil {
				return err
			}
			var text bytes.Buffer
			for _, o := range objects {
				document, err := yaml.Marshal(o.Object)
				if err != nil {
					return err
				}
				text.WriteString("---\n")
				text.Write(document)
			}
			_, err = cmd.OutOrStdout().Write(text.Bytes())
			return err
		},
	}
}
