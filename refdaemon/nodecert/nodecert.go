// SPDX-License-Identifier: Apache-2.0

// Package nodecert obtains the certificate of a node's agent, by which the agents of other nodes know it during migrations, and
// replaces it in time: [Keeper] makes a key, which never leaves the memory of the process, requests a certificate for it from the
// signer of package authority, and follows the authorities that the signer publishes.
//
// A new certificate is used as soon as the node trusts its authority itself; until then, and while none can be obtained, the old
// one stays in use. Connections that are open keep theirs. A certificate whose authority is not trusted any more is replaced at
// once.
package nodecert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// A certificate is replaced when between renewAt and renewAt+renewSpread of its lifetime have passed, so that the agents of a
// cluster that was set up in one go do not ask at once.
const (
	renewAt     = 0.6
	renewSpread = 0.1
	// retryFirst and retryMost bound the delay after a failure, which doubles.
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Keeper maintains the certificate of one agent. It is a Runnable of a manager, and implements migrationproxy.Certificates.
type Keeper struct {
	// NodeName is the name of the agent's node.
	NodeName string
	// Client requests certificates and watches the authorities. Its credentials must be a token that is bound to the agent's
	// Pod.
	Client kubernetes.Interface
	// Authorities names the ConfigMap with the authorities.
	Authorities types.NamespacedName
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Random returns numbers from zero up to one; defaults to those of math/rand.
	Random func() float64

	mu      sync.Mutex
	own     *tls.Certificate
	renew   time.Time // when own is to be replaced
	roots   *x509.CertPool
	changed chan struct{} // closed when roots change
	problem error         // why there is no certificate, or no new one
}

var errNone = errors.New("nodecert: the certificate of this node is not there yet")

// NeedLeaderElection returns false: every agent has a certificate.
func (*Keeper) NeedLeaderElection() bool { return false }

// Start maintains the certificate until the context ends.
func (k *Keeper) Start(ctx context.Context) error {
	if k.NodeName == "" || k.Client == nil || k.Authorities.Name == "" {
		return errors.New("nodecert: Keeper.NodeName, Client and Authorities are required")
	}
	logger := log.FromContext(ctx).WithName("nodecert")
	ctx = log.IntoContext(ctx, logger)
	watching := sync.WaitGroup{}
	defer watching.Wait()
	watching.Go(func() { k.follow(ctx) })
	delay := retryFirst
	for ctx.Err() == nil {
		wait, changed := k.due()
		if wait > 0 {
			k.pause(ctx, wait, changed)
			continue
		}
		err := k.replace(ctx)
		k.fail(err)
		if err == nil {
			delay = retryFirst
			continue
		}
		if ctx.Err() == nil {
			logger.Error(err, "Obtaining the certificate of the node failed, retrying", "after", delay.String())
			k.pause(ctx, delay, nil)
			delay = min(2*delay, retryMost)
		}
	}
	return nil
}

// Current implements migrationproxy.Certificates.
func (k *Keeper) Current() (own tls.Certificate, roots *x509.CertPool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lockedUsable(); err != nil {
		return tls.Certificate{}, nil, err
	}
	return *k.own, k.roots, nil
}

// Check reports whether there is a valid certificate, for a probe.
func (k *Keeper) Check(*http.Request) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lockedUsable()
}

// lockedUsable returns why the certificate cannot be used; nil if it can.
func (k *Keeper) lockedUsable() error {
	switch {
	case k.own == nil && k.problem != nil:
		return fmt.Errorf("%w: %w", errNone, k.problem)
	case k.own == nil || k.roots == nil:
		return errNone
	case !k.now().Before(k.own.Leaf.NotAfter):
		return fmt.Errorf("nodecert: the certificate of this node expired at %s: %w", k.own.Leaf.NotAfter.Format(time.RFC3339), k.problem)
	}
	return trusted(k.own.Leaf, k.roots, k.now())
}

// due returns the time until the certificate is to be replaced, and a channel that is closed if that may be sooner.
func (k *Keeper) due() (wait time.Duration, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own == nil || k.roots != nil && trusted(k.own.Leaf, k.roots, k.now()) != nil {
		return 0, nil
	}
	return k.renew.Sub(k.now()), k.lockedChanged()
}

// lockedChanged returns the channel that is closed when the authorities change.
func (k *Keeper) lockedChanged() <-chan struct{} {
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

// adopt takes a certificate into use if its authority is trusted; otherwise it returns why not, and a channel that is closed
// when that may have changed.
func (k *Keeper) adopt(c *tls.Certificate) (<-chan struct{}, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if k.roots == nil {
		return k.lockedChanged(), fmt.Errorf("there are no authorities in ConfigMap %s yet", k.Authorities)
	}
	if err := trusted(c.Leaf, k.roots, now); err != nil {
		return k.lockedChanged(), err
	}
	k.own, k.problem = c, nil
	k.renew = now.Add(time.Duration(float64(c.Leaf.NotAfter.Sub(now)) * (renewAt + renewSpread*k.random())))
	return nil, nil
}

// trust replaces the authorities.
func (k *Keeper) trust(roots *x509.CertPool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.roots = roots
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

func (k *Keeper) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problem = err
}

// trusted reports whether a certificate is valid for both ends of a migration.
func trusted(c *x509.Certificate, roots *x509.CertPool, now time.Time) error {
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			return fmt.Errorf("nodecert: the certificate of this node is not trusted: %w", err)
		}
	}
	return nil
}

// pause waits for a time, for the channel, which may be nil, or for the context's end.
func (k *Keeper) pause(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	timer := k.clock().NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer.C():
	}
}

func (k *Keeper) clock() clock.WithTicker {
	if k.Clock == nil {
		return clock.RealClock{}
	}
	return k.Clock
}

func (k *Keeper) now() time.Time { return k.clock().Now() }

func (k *Keeper) random() float64 {
	if k.Random == nil {
		return rand.Float64() //nolint:gosec // spreads load
	}
	return k.Random()
}
