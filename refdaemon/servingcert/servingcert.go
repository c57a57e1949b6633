// SPDX-License-Identifier: Apache-2.0

// Package servingcert keeps the certificate by which webhooks are served, where no other program does: [Keeper] makes it, stores
// it in a Secret, gives its authority to the API servers (clientConfig.caBundle) and replaces it in time.
//
// Every replica runs one. What is stored is changed with the version that was read, so that of several that find something due
// one succeeds, and the others read what it wrote. A certificate has an authority of its own, whose key is never stored: nothing else
// can be signed with it. A new certificate is served only after all configurations have its authority, and the authority of the
// old one stays there as long as the old one is valid; so there is no moment at which a replica shows a certificate that API servers do not
// trust, but for the very first.
package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Configuration is the name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration that are given the
// authority.
const Configuration = "virtloom"

// looks is how often a Keeper looks within the life of a certificate, but at least once in mostBetween.
const (
	looks       = 30
	mostBetween = time.Minute
	// retry is the time after a look that failed.
	retry = time.Second
)

// Keeper keeps the certificate of one program. It is a Runnable of a manager, of which every replica needs its own.
type Keeper struct {
	// Reader reads the Secret and the configurations. It should not be a cache, which would hold all Secrets.
	Reader client.Reader
	// Writer writes them.
	Writer client.Writer
	// Secret is where the certificate is stored. It has to be there; it may be empty.
	Secret types.NamespacedName
	// Lifetime of a certificate, which is replaced when a third of it is left.
	Lifetime time.Duration
	// Clock may be replaced in tests; nil is that of the machine.
	Clock clock.PassiveClock

	served atomic.Pointer[tls.Certificate]
}

// The Secret comes with the manifests, as a right to create one could not be narrowed to its name.
//
// +kubebuilder:rbac:namespace=virtloom-system,groups="",resources=secrets,resourceNames=virtloom-webhook-serving,verbs=get;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=virtloom,verbs=get;patch

// NeedLeaderElection reports that every replica serves.
func (*Keeper) NeedLeaderElection() bool { return false }

// Start looks after the certificate until the context ends.
func (k *Keeper) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("servingcert").WithValues("secret", k.Secret)
	for ctx.Err() == nil {
		pause := min(mostBetween, k.Lifetime/looks)
		switch err := k.Look(ctx); {
		case apierrors.IsConflict(err): // another replica was faster
			pause = min(pause, retry)
		case err != nil && ctx.Err() == nil:
			logger.Error(err, "Could not look after the certificate of the webhooks")
			pause = min(pause, retry)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// Look does once what is due, and reads what is to be served.
func (k *Keeper) Look(ctx context.Context) error {
	all, err := k.configurations(ctx)
	if err != nil {
		return err
	}
	s := &corev1.Secret{}
	if err := k.Reader.Get(ctx, k.Secret, s); err != nil {
		return fmt.Errorf("read Secret %s, which comes with the manifests: %w", k.Secret, err)
	}
	p := &plan{hosts: hosts(all), lifetime: k.Lifetime, now: k.now(), trusted: func(authority *x509.Certificate) bool { return trust(all, authority) }}
	next, err := p.advance(s.Data)
	if err != nil {
		return err
	}
	if !same(s.Data, next) {
		s.Data = next
		if err := k.Writer.Update(ctx, s); err != nil {
			return fmt.Errorf("store the certificate in Secret %s: %w", k.Secret, err)
		}
		log.FromContext(ctx).Info("Stored a certificate of the webhooks", "secret", k.Secret)
	}
	pair, err := tls.X509KeyPair(s.Data[keyServed], s.Data[keyServedKey])
	if err != nil {
		return fmt.Errorf("certificate in Secret %s: %w", k.Secret, err)
	}
	k.served.Store(&pair)
	return k.tell(ctx, all, s.Data[keyAuthorities])
}

// GetCertificate is what a tls.Config asks for.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.served.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("servingcert: there is no certificate yet")
}

func (k *Keeper) now() time.Time {
	if k.Clock == nil {
		return clock.RealClock{}.Now()
	}
	return k.Clock.Now()
}
