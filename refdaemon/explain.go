// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

const explainUsage = `Usage: refdaemon explain migration NAMESPACE/NAME [flags]

Tells where a migration stands: whose turn it is, what it waits for and what ends that, its
place in the queue, the limits in its way and who holds the slots, its deadline, its
policy and options, where its guest could go, and the guest's other migrations.
` + observerRights

// runExplain tells where a migration stands.
func runExplain(ctx context.Context, args []string, out io.Writer) error {
	o := &observer{command: "explain"}
	fs := flag.NewFlagSet("refdaemon explain", flag.ContinueOnError)
	o.flags(fs)
	words, err := o.parse(fs, args, out, explainUsage)
	if err != nil {
		return err
	}
	key, err := migrationNamed(words)
	if err != nil {
		return o.wrong(err)
	}
	return o.look(ctx, func(ctx context.Context, r *migrationctrl.Reconciler) error {
		e, err := r.Explain(ctx, key)
		if err != nil {
			return err
		}
		if e == nil {
			return fmt.Errorf("explain: there is no VirtualMachineInstanceMigration %s", key)
		}
		return o.print(out, e)
	})
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
