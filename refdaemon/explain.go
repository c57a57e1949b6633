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

const explainText = `Tells where something stands, by the code of the controllers themselves: what is in the way, why,
and what mends that.

vmi        its Pod, claims and DataVolumes, networks, scheduling, node, lease, migrations; and
           what of status, lease, Pod and domain does not fit together
migration  whose turn it is, what it waits for and what ends that, its place in the queue, the limits
           in its way and who holds the slots, its deadline, its policy and options, where its guest
           could go, and the guest's other migrations
node       its agent's heartbeat, whether it takes guests, its guests by phase, the slots that
           migrations use, and the guests that something is amiss with

Whether the controller's cache lags, or it waits to see a write of its own, it knows alone:
--controller asks it. Without, its metrics virtloom_expectations_outstanding and
virtloom_expectations_settle_duration_seconds tell it for all guests together.
` + observerRights

// explainOptions are the flags of "refdaemon explain".
type explainOptions struct {
	observer
	tokenFile, caFile string
	unverified        bool
}

// newExplain tells where a guest, a migration or a node stands.
func newExplain() *cobra.Command {
	o := &explainOptions{observer: observer{command: "explain"}}
	var tell func(context.Context, *diagnosis.Cluster) (writer, error)
	cmd := o.observes(&cobra.Command{
		Use: "explain vmi|migration NAMESPACE/NAME | explain node NAME", Short: "tell where a guest, a migration or a node stands, and what is in its way", Long: explainText,
		Example: `  refdaemon explain vmi shop/web --kubeconfig ~/.kube/config
  refdaemon explain migration shop/web -o json
  refdaemon explain node node-1 --dump cluster.dump.gz
  # With what the controller sees, by "kubectl port-forward -n virtloom-system POD 8443":
  refdaemon explain vmi shop/web --controller https://localhost:8443 --controller-token-file token --controller-insecure-skip-tls-verify
  # The same where its metrics are secured:
  refdaemon explain vmi shop/web --controller https://metrics.example --controller-token-file token --controller-ca-file ca.crt`,
		ValidArgsFunction: o.complete("vmi", "migration", "node"),
		Args: checked(func(args []string) (err error) {
			tell, err = explained(args)
			return err
		}),
	})
	fs := cmd.Flags()
	o.dumps(fs)
	fs.StringVar(&o.controller.URL, "controller", "", "`URL` where the controller that leads serves its metrics: it is asked what it sees")
	fs.StringVar(&o.tokenFile, "controller-token-file", "", "`file` with the token that is shown to the controller, where its metrics are for those only who may get their path")
	fs.BoolVar(&o.unverified, "controller-insecure-skip-tls-verify", false, "do not check who answers as the controller, which is shown the token: for one that made its certificate itself, on a way that is safe")
	fs.StringVar(&o.caFile, "controller-ca-file", "", "`file` with the certificate authorities by which the controller is believed; without, those of the system")
	o.further = o.asks
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.reach(); err != nil {
			return err
		}
		return o.look(cmd.Context(), func(ctx context.Context, c *diagnosis.Cluster) error {
			e, err := tell(ctx, c)
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), o.output, e)
		})
	}
	return cmd
}

// asks checks whom to ask.
func (o *explainOptions) asks() error {
	switch {
	case o.controller.URL == "" && (o.tokenFile != "" || o.caFile != "" || o.unverified):
		return errors.New("--controller-token-file, --controller-ca-file and --controller-insecure-skip-tls-verify are for --controller")
	case o.caFile != "" && o.unverified:
		return errors.New("--controller-ca-file says whom to believe, --controller-insecure-skip-tls-verify to believe everybody: give one")
	case o.controller.URL != "" && o.dump != "":
		return errors.New("--controller knows nothing of the time of a dump: give one of --dump and --controller")
	}
	return nil
}

// reach finds out how to ask the controller.
func (o *explainOptions) reach() error {
	if o.controller.URL == "" {
		return nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.unverified} //nolint:gosec // asked for by its name
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

// explained understands "vmi NAMESPACE/NAME", "migration NAMESPACE/NAME" and "node NAME".
func explained(words []string) (func(context.Context, *diagnosis.Cluster) (writer, error), error) {
	if len(words) != 2 {
		return nil, errors.New(`say what to explain: "vmi NAMESPACE/NAME", "migration NAMESPACE/NAME" or "node NAME"`)
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
	case "vmi":
		return func(ctx context.Context, c *diagnosis.Cluster) (writer, error) { return c.Guest(ctx, key) }, nil
	case "migration":
		return func(ctx context.Context, c *diagnosis.Cluster) (writer, error) { return c.Migration(ctx, key) }, nil
	}
	return nil, fmt.Errorf(`%q cannot be explained: say "vmi NAMESPACE/NAME", "migration NAMESPACE/NAME" or "node NAME"`, words[0])
}
