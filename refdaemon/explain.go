// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/refdaemon/diagnosis"
)

const explainText = `Explains the state of an object with the code of the controllers themselves: what blocks it, why,
and how to resolve that.

vm         its run strategy, requests, back-off, instance type, DataVolumes and changes that need a restart,
           whose turn it is, and below it its VMI, with Pod and migrations
vmi        its Pod, claims and DataVolumes, networks, scheduling, node, lease, migrations; and
           contradictions between status, lease, Pod and domain
migration  the responsible component, what it waits for and what ends that, its place in the queue,
           the limits that block it and who holds the slots, its deadline, its policy and options, the
           candidate nodes of its VMI, and the VMI's other migrations
node       its agent's heartbeat, whether it is schedulable, its VMIs by phase, the slots that
           migrations use, and the VMIs with findings

Only the controller knows whether its cache lags or still misses its own writes: --controller
asks it. Without that flag, its metrics virtloom_expectations_outstanding and
virtloom_expectations_settle_duration_seconds show it for all VMIs together.
` + observerRights

// explainOptions are the flags of "refdaemon explain".
type explainOptions struct {
	observer
	tokenFile, caFile string
	unverified        bool
}

// newExplain explains the state of a VirtualMachine, a VMI, a migration or a node.
func newExplain() *cobra.Command {
	o := &explainOptions{observer: observer{command: "explain"}}
	var diagnose func(context.Context, *diagnosis.Cluster) (writer, error)
	cmd := o.observes(&cobra.Command{
		Use: "explain vm|vmi|migration NAMESPACE/NAME | explain node NAME", Short: "explain the state of a VirtualMachine, a VMI, a migration or a node, and what blocks it", Long: explainText,
		Example: `  refdaemon explain vm shop/web --kubeconfig ~/.kube/config
  refdaemon explain vmi shop/web --kubeconfig ~/.kube/config
  refdaemon explain migration shop/web -o json
  refdaemon explain node node-1 --dump cluster.dump.gz
  # With the controller's view, by "kubectl port-forward -n virtloom-system POD 8443":
  refdaemon explain vmi shop/web --controller https://localhost:8443 --controller-token-file token --controller-insecure-skip-tls-verify
  # The same where its metrics are secured:
  refdaemon explain vmi shop/web --controller https://metrics.example --controller-token-file token --controller-ca-file ca.crt`,
		ValidArgsFunction: o.complete("vm", "vmi", "migration", "node"),
		Args: checked(func(args []string) (err error) {
			diagnose, err = explained(args)
			return err
		}),
	})
	fs := cmd.Flags()
	o.dumps(fs)
	fs.StringVar(&o.controller.URL, "controller", "", "`URL` of the metrics of the leading controller, which is asked for its view of the object")
	fs.StringVar(&o.tokenFile, "controller-token-file", "", "`file` with the bearer token for a controller whose metrics require authorization")
	fs.BoolVar(&o.unverified, "controller-insecure-skip-tls-verify", false, "do not verify the certificate of the controller, which receives the token: for a self-signed certificate on a trusted network")
	fs.StringVar(&o.caFile, "controller-ca-file", "", "`file` with the certificate authorities that verify the controller; empty is those of the system")
	o.further = o.asks
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.reach(); err != nil {
			return err
		}
		return o.look(cmd.Context(), func(ctx context.Context, c *diagnosis.Cluster) error {
			e, err := diagnose(ctx, c)
			if err != nil {
				return err
			}
			return printResult(cmd.OutOrStdout(), o.output, e)
		})
	}
	return cmd
}

// asks checks the flags that select the controller.
func (o *explainOptions) asks() error {
	switch {
	case o.controller.URL == "" && (o.tokenFile != "" || o.caFile != "" || o.unverified):
		return errors.New("--controller-token-file, --controller-ca-file and --controller-insecure-skip-tls-verify are for --controller")
	case o.caFile != "" && o.unverified:
		return errors.New("--controller-ca-file and --controller-insecure-skip-tls-verify exclude each other")
	case o.controller.URL != "" && o.dump != "":
		return errors.New("--dump and --controller exclude each other: a controller has no view of the time of a dump")
	}
	return nil
}

// reach sets up the client of the controller.
func (o *explainOptions) reach() error {
	if o.controller.URL == "" {
		return nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.unverified} //nolint:gosec // requested by flag
	if o.caFile != "" {
		text, err := os.ReadFile(filepath.Clean(o.caFile))
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("explain: --controller-ca-file %s has no certificate", o.caFile)
		}
	}
	if o.tokenFile != "" {
		text, err := os.ReadFile(filepath.Clean(o.tokenFile))
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		o.controller.Token = string(bytes.TrimSpace(text))
	}
	o.controller.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: t, Proxy: http.ProxyFromEnvironment}, Timeout: o.timeout}
	return nil
}

// explained parses "vm NAMESPACE/NAME", "vmi NAMESPACE/NAME", "migration NAMESPACE/NAME" and "node NAME".
func explained(words []string) (func(context.Context, *diagnosis.Cluster) (writer, error), error) {
	if len(words) != 2 {
		return nil, errors.New(`specify what to explain: "vm NAMESPACE/NAME", "vmi NAMESPACE/NAME", "migration NAMESPACE/NAME" or "node NAME"`)
	}
	if words[0] == "node" {
		if words[1] == "" || strings.Contains(words[1], "/") {
			return nil, fmt.Errorf("%q is not the NAME of a node", words[1])
		}
		return func(ctx context.Context, c *diagnosis.Cluster) (writer, error) { return c.Node(ctx, words[1]) }, nil
	}
	namespace, name, found := strings.Cut(words[1], "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is not NAMESPACE/NAME", words[1])
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	switch words[0] {
	case "vm":
		return func(ctx context.Context, c *diagnosis.Cluster) (writer, error) { return c.Machine(ctx, key) }, nil
	case "vmi":
		return func(ctx context.Context, c *diagnosis.Cluster) (writer, error) { return c.VMI(ctx, key) }, nil
	case "migration":
		return func(ctx context.Context, c *diagnosis.Cluster) (writer, error) { return c.Migration(ctx, key) }, nil
	}
	return nil, fmt.Errorf(`%q cannot be explained: use "vm NAMESPACE/NAME", "vmi NAMESPACE/NAME", "migration NAMESPACE/NAME" or "node NAME"`, words[0])
}
