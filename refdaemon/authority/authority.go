// SPDX-License-Identifier: Apache-2.0

// Package authority is the certificate authority of the node agents, which prove to each other with its certificates which node
// they belong to:
//
//	Keeper  maintains the authority: its key in a Secret, its certificates in a ConfigMap for agents
//	Signer  approves and signs the CertificateSigningRequests of agents, and denies all others of its signer
//
// A request is granted if and only if the API server has recorded that its creator is the agents' service account, with a token
// bound to a Pod that exists on the node whose name the certificate is to have. None of this is taken from the request itself.
//
// The Secret is the only source of what agents trust: the ConfigMap is overwritten with its content, and never read for more
// than to see what is published. So whoever replaces the content of the Secret in one write, such as by emptying it, replaces
// the authority, and no agent trusts the former one any more.
package authority

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// SignerName is the signer of the agents' certificates.
const SignerName = "virtloom.dev/node-agent"

// KeyAuthorities is the key, in the ConfigMap, of the certificates that agents trust.
const KeyAuthorities = "ca.crt"

const (
	// looks is the number of checks within the lifetime of a certificate of an agent, but at least one in mostBetween.
	looks       = 30
	mostBetween = time.Minute
	// retry is the delay after a failed check.
	retry = time.Second
	// Shares is how many lifetimes of certificates the authority's lifetime has at least, so that its last third suffices to
	// replace it before it is too short for a certificate.
	Shares = 3
)

// Keeper maintains the authority. It is a Runnable of a manager, for the leader among replicas.
type Keeper struct {
	// Reader reads the Secret and the ConfigMap. It should not be a cache, which would hold all of them.
	Reader client.Reader
	// Writer writes them.
	Writer client.Writer
	// Secret and ConfigMap name the objects. They must exist; they may be empty.
	Secret, ConfigMap types.NamespacedName
	// Lifetime is that of an authority, which is replaced when a third of it is left; CertificateLifetime is that of the
	// agents' certificates, Shares times shorter at least.
	Lifetime, CertificateLifetime time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Both objects come with the manifests, as a right to create one could not be restricted to its name.
//
// +kubebuilder:rbac:namespace=virtloom-system,groups="",resources=secrets,resourceNames=virtloom-node-authority,verbs=get;update
// +kubebuilder:rbac:namespace=virtloom-node,groups="",resources=configmaps,resourceNames=virtloom-node-authorities,verbs=get;update

// NeedLeaderElection returns true: one replica maintains the authority.
func (*Keeper) NeedLeaderElection() bool { return true }

// Start maintains the authority until the context ends.
func (k *Keeper) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("authority").WithValues("secret", k.Secret)
	for ctx.Err() == nil {
		pause := min(mostBetween, k.CertificateLifetime/looks)
		switch err := k.Look(ctx); {
		case apierrors.IsConflict(err): // another client was faster, such as a former leader
			pause = min(pause, retry)
		case err != nil && ctx.Err() == nil:
			logger.Error(err, "Maintaining the authority of node agents failed, retrying")
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

// Look takes the steps that are due. The ConfigMap is read before the Secret and written with the version read: if another
// replica publishes a later state of the Secret meanwhile, the write conflicts, and cannot revert it.
func (k *Keeper) Look(ctx context.Context) error {
	published := &corev1.ConfigMap{}
	if err := k.Reader.Get(ctx, k.ConfigMap, published); err != nil {
		return fmt.Errorf("read ConfigMap %s, which comes with the manifests: %w", k.ConfigMap, err)
	}
	s := &corev1.Secret{}
	if err := k.Reader.Get(ctx, k.Secret, s); err != nil {
		return fmt.Errorf("read Secret %s, which comes with the manifests: %w", k.Secret, err)
	}
	p := &plan{lifetime: k.Lifetime, settle: k.CertificateLifetime / Shares, now: now(k.Clock), published: []byte(published.Data[KeyAuthorities])}
	next, err := p.advance(s.Data)
	if err != nil {
		return err
	}
	if !same(s.Data, next) {
		s.Data = next
		if err := k.Writer.Update(ctx, s); err != nil {
			return fmt.Errorf("store the authority in Secret %s: %w", k.Secret, err)
		}
		log.FromContext(ctx).Info("Stored authority of node agents", "secret", k.Secret)
	}
	bundle := string(s.Data[keyAuthorities])
	if published.Data[KeyAuthorities] == bundle {
		return nil
	}
	published.Data = map[string]string{KeyAuthorities: bundle}
	if err := k.Writer.Update(ctx, published); err != nil {
		return fmt.Errorf("publish the authorities in ConfigMap %s: %w", k.ConfigMap, err)
	}
	log.FromContext(ctx).Info("Published authorities of node agents", "configMap", k.ConfigMap)
	return nil
}

// force returns the authority in force, read from the Secret.
func force(ctx context.Context, r client.Reader, secret types.NamespacedName) (*x509.Certificate, crypto.Signer, error) {
	s := &corev1.Secret{}
	if err := r.Get(ctx, secret, s); err != nil {
		return nil, nil, fmt.Errorf("read Secret %s, which comes with the manifests: %w", secret, err)
	}
	pair, err := tls.X509KeyPair(s.Data[keyCurrent], s.Data[keyCurrentKey])
	if err != nil {
		return nil, nil, fmt.Errorf("authority in Secret %s: %w", secret, err)
	}
	key, able := pair.PrivateKey.(crypto.Signer)
	if !able || !pair.Leaf.IsCA {
		return nil, nil, fmt.Errorf("authority in Secret %s: %w", secret, errors.New("it is none"))
	}
	return pair.Leaf, key, nil
}

func now(c clock.PassiveClock) time.Time {
	if c == nil {
		return clock.RealClock{}.Now()
	}
	return c.Now()
}
