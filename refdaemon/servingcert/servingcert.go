// SPDX-License-Identifier: Apache-2.0

// Package servingcert maintains the serving certificate of webhooks, where no other program does: [Keeper] issues it, stores it
// in a Secret, publishes its authority to the API servers (clientConfig.caBundle) and rotates it in time.
//
// Every replica runs one. The Secret is updated with the version that was read, so that of several replicas one succeeds, and
// the others read its result. A certificate has an authority of its own, whose key is never stored: nothing else can be signed
// with it. A new certificate is served only after all configurations have its authority, and the authority of the old one stays
// there as long as the old one is valid; so a replica never presents a certificate that API servers do not trust, except the very
// first.
package servingcert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/virtloom/virtloom/refdaemon/rotation"
)

// Configuration is the name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration whose authority is
// set.
const Configuration = "virtloom"

// Keeper maintains the certificate of one program. It is a Runnable of a manager; every replica needs one.
type Keeper struct {
	// Reader reads the Secret and the configurations. It should not be a cache, which would hold all Secrets.
	Reader client.Reader
	// Writer writes them.
	Writer client.Writer
	// Secret names the Secret for the certificate. It must exist; it may be empty.
	Secret types.NamespacedName
	// Lifetime is that of a certificate, which is rotated when a third of it is left.
	Lifetime time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock

	served atomic.Pointer[tls.Certificate]
}

// The Secret comes with the manifests, as a right to create one could not be restricted to its name.
//
// +kubebuilder:rbac:namespace=virtloom-system,groups="",resources=secrets,resourceNames=virtloom-webhook-serving,verbs=get;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=virtloom,verbs=get;patch

// NeedLeaderElection returns false: every replica serves.
func (*Keeper) NeedLeaderElection() bool { return false }

// Start maintains the certificate until the context ends.
func (k *Keeper) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("servingcert").WithValues("secret", k.Secret)
	return rotation.Run(log.IntoContext(ctx, logger), k.Lifetime, k.Look)
}

// Look takes the steps that are due, and loads the certificate to serve.
func (k *Keeper) Look(ctx context.Context) error {
	all, err := k.configurations(ctx)
	if err != nil {
		return err
	}
	data, err := k.rotation(all).Step(ctx, k.Reader, k.Writer)
	if err != nil {
		return err
	}
	pair, err := rotation.InForce(data)
	if err != nil {
		return fmt.Errorf("certificate in Secret %s: %w", k.Secret, err)
	}
	k.served.Store(&pair)
	return k.publish(ctx, all, data[rotation.KeyAuthorities])
}

// GetCertificate returns the certificate in force, for a tls.Config. It is safe for concurrent use.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.served.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("servingcert: there is no certificate yet")
}
