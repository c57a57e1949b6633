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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/virtloom/virtloom/refdaemon/rotation"
)

// SignerName is the signer of the agents' certificates.
const SignerName = "virtloom.dev/node-agent"

// KeyAuthorities is the key, in the ConfigMap, of the certificates that agents trust.
const KeyAuthorities = rotation.KeyAuthorities

// Shares is how many lifetimes of certificates the authority's lifetime has at least, so that its last third suffices to
// replace it before it is too short for a certificate.
const Shares = 3

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
	return rotation.Run(log.IntoContext(ctx, logger), k.CertificateLifetime, k.rotate)
}

// rotate takes the steps that are due. The ConfigMap is read before the Secret and written with the version read: if another
// replica publishes a later state of the Secret meanwhile, the write conflicts, and cannot revert it.
func (k *Keeper) rotate(ctx context.Context) error {
	published := &corev1.ConfigMap{}
	if err := k.Reader.Get(ctx, k.ConfigMap, published); err != nil {
		return fmt.Errorf("read ConfigMap %s, which comes with the manifests: %w", k.ConfigMap, err)
	}
	data, err := k.rotation(published).Step(ctx, k.Reader, k.Writer)
	if err != nil {
		return err
	}
	bundle := string(data[KeyAuthorities])
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

// rotation returns the rules for the Secret. An authority signs once it has been published for a while: agents that are within
// reach of the API server know it by then.
func (k *Keeper) rotation(published *corev1.ConfigMap) *rotation.Rotation {
	now, settle := rotation.Now(k.Clock), k.CertificateLifetime/Shares
	return &rotation.Rotation{
		Secret: k.Secret, Lifetime: k.Lifetime, Now: now,
		Valid: func(p rotation.Pair, _ []*x509.Certificate) *x509.Certificate {
			pair, err := tls.X509KeyPair(p.Certificate, p.Key)
			if err != nil || !pair.Leaf.IsCA || !now.Before(pair.Leaf.NotAfter) {
				return nil
			}
			return pair.Leaf
		},
		Issue: func() (rotation.Pair, *x509.Certificate, error) {
			made, key, err := rotation.NewAuthority("virtloom node agents", now, k.Lifetime)
			if err != nil {
				return rotation.Pair{}, nil, err
			}
			p, err := rotation.Encode(key, made)
			return p, made, err
		},
		Known: func(next *x509.Certificate) bool {
			return rotation.Contains([]byte(published.Data[KeyAuthorities]), next) && !now.Before(next.NotBefore.Add(rotation.Early+settle))
		},
	}
}

// force returns the authority in force, read from the Secret.
func force(ctx context.Context, r client.Reader, secret types.NamespacedName) (*x509.Certificate, crypto.Signer, error) {
	pair, err := rotation.Read(ctx, r, secret)
	if err != nil {
		return nil, nil, fmt.Errorf("authority in Secret %s: %w", secret, err)
	}
	key, able := pair.PrivateKey.(crypto.Signer)
	if !able || !pair.Leaf.IsCA {
		return nil, nil, fmt.Errorf("authority in Secret %s: %w", secret, errors.New("it is none"))
	}
	return pair.Leaf, key, nil
}
