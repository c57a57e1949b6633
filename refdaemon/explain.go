// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

const explainText = `Tells where a migration stands: whose turn it is, what it waits for and what ends that, its
place in the queue, the limits in its way and who holds the slots, its deadline, its
policy and options, where its guest could go, and the guest's other migrations.
` + observerRights

// newExplain tells where a migration stands.
func newExplain() *cobra.Command {
	o := &observer{command: "explain"}
	var key types.NamespacedName
	cmd := o.observes(&cobra.Command{
		Use: "explain migration NAMESPACE/NAME", Short: "tell where a migration stands, from a cluster", Long: explainText,
		Example: `  refdaemon explain migration shop/web --kubeconfig ~/.kube/config
  refdaemon explain migration shop/web -o json`,
		ValidArgs: []string{"migration"},
		Args: checked(func(args []string) (err error) {
			key, err = migrationNamed(args)
			return err
		}),
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.look(cmd.Context(), func(ctx context.Context, r *migrationctrl.Reconciler) error {
			e, err := r.Explain(ctx, key)
			if err != nil {
				return err
			}
			if e == nil {
				return fmt.Errorf("explain: there is no VirtualMachineInstanceMigration %s", key)
			}
			return o.print(cmd.OutOrStdout(), e)
		})
	}
	return cmd
}

// migrationNamed understands "migration NAMESPACE/NAME".
func migrationNamed(words []string) (types.NamespacedName, error) {
	var key types.NamespacedName
	if len(words) != 2 || words[0] != "migration" {
		return key, errors.New(`say what to explain: "migration NAMESPACE/NAME"`)
	}
	namespace, name, found := strings.Cut(words[1], "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return key, fmt.Errorf("%q is not NAMESPACE/NAME", words[1])
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}
