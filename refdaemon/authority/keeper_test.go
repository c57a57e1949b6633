// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const (
	certificates = 24 * time.Hour
	lifetime     = 12 * certificates
)

var (
	secret    = types.NamespacedName{Namespace: "system", Name: "authority"}
	published = types.NamespacedName{Namespace: "nodes", Name: "authorities"}
)

// world is what a Keeper looks after.
type world struct {
	client.WithWatch
	clock *clocktesting.FakePassiveClock
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{clock: clocktesting.NewFakePassiveClock(time.Now()), WithWatch: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: published.Namespace, Name: published.Name}},
	).Build()}
}

func (w *world) keeper() *Keeper {
	return &Keeper{Reader: w, Writer: w, Secret: secret, ConfigMap: published, Lifetime: lifetime, CertificateLifetime: certificates, Clock: w.clock}
}

// foreign is the content of the Secret of another authority.
func foreign(t *testing.T) map[string][]byte {
	t.Helper()
	other := newWorld(t)
	must(t, other.keeper().rotate(t.Context()))
	s := &corev1.Secret{}
	must(t, other.Get(t.Context(), secret, s))
	return s.Data
}

// bundle is what agents are given.
func (w *world) bundle(t *testing.T) []byte {
	t.Helper()
	m := &corev1.ConfigMap{}
	must(t, w.Get(t.Context(), published, m))
	return []byte(m.Data[KeyAuthorities])
}

// certify makes a certificate for an agent.
func (w *world) certify(t *testing.T) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	s := &Signer{Reader: w, Secret: secret, Lifetime: certificates, Clock: w.clock}
	text, err := s.sign(t.Context(), &key.PublicKey, "node-a", nil)
	must(t, err)
	all, err := cert.ParseCertsPEM(text)
	must(t, err)
	return all[0]
}

// trusts reports whether an agent with a bundle trusts a certificate.
func (w *world) trusts(bundle []byte, c *x509.Certificate) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: "node-a", CurrentTime: w.clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// TestKeeper_Rotation goes through four lives of an authority. Agents take each other's certificates at every moment: the oldest
// one that is valid, and the newest, even if they learn of authorities hours late.
func TestKeeper_Rotation(t *testing.T) {
	w := newWorld(t)
	k := w.keeper()
	must(t, k.rotate(t.Context()))
	const step, late = time.Hour, 7
	var (
		bundles [][]byte
		valid   []*x509.Certificate
		seen    = map[string]bool{}
	)
	for range 4 * int(lifetime/step) {
		bundles = append(bundles, w.bundle(t))
		now := bundles[len(bundles)-1]
		c := w.certify(t)
		if left := c.NotAfter.Sub(w.clock.Now()); left < certificates-time.Second {
			t.Fatalf("a certificate is valid for %s", left)
		}
		valid = append(valid, c)
		for !w.clock.Now().Before(valid[0].NotAfter) {
			valid = valid[1:]
		}
		for what, c := range map[string]*x509.Certificate{"the oldest": valid[0], "the newest": c} {
			if err := w.trusts(now, c); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if err := w.trusts(bundles[max(0, len(bundles)-1-late)], c); err != nil {
				t.Fatalf("%s, by agents that are late: %v", what, err)
			}
		}
		if all, err := cert.ParseCertsPEM(now); err != nil || len(all) > 2 {
			t.Fatalf("%d authorities are trusted: %v", len(all), err)
		}
		seen[string(c.RawIssuer)] = true
		w.clock.SetTime(w.clock.Now().Add(step))
		must(t, k.rotate(t.Context()))
	}
	if len(seen) < 4 {
		t.Errorf("%d authorities have signed", len(seen))
	}
}

// TestKeeper_SecretReplaced: a compromised authority is trusted no more, by the one write of an administrator, whatever a former
// leader that has seen it still does.
func TestKeeper_SecretReplaced(t *testing.T) {
	for name, replace := range map[string]func(*corev1.Secret){
		"emptied": func(s *corev1.Secret) { s.Data = nil },
		"all of another": func(s *corev1.Secret) {
			s.Data = foreign(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			former := w.keeper()
			must(t, former.rotate(t.Context()))
			w.clock.SetTime(w.clock.Now().Add(lifetime * 3 / 4))
			must(t, former.rotate(t.Context())) // the next one is there as well
			compromised := w.certify(t)
			former.Writer = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
				Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					s := &corev1.Secret{}
					must(t, w.Get(ctx, secret, s))
					replace(s)
					must(t, w.Update(ctx, s))
					must(t, w.keeper().rotate(ctx))
					return c.Update(ctx, o, opts...)
				},
			})
			m := &corev1.ConfigMap{}
			must(t, w.Get(t.Context(), published, m))
			m.Data = nil // so that there is something to publish
			must(t, w.Update(t.Context(), m))
			if err := former.rotate(t.Context()); !apierrors.IsConflict(err) {
				t.Fatalf("the former leader has published: %v", err)
			}
			for range 2 {
				if err := w.trusts(w.bundle(t), compromised); err == nil {
					t.Fatal("the compromised authority is still trusted")
				}
				if err := w.trusts(w.bundle(t), w.certify(t)); err != nil {
					t.Fatal(err)
				}
				must(t, w.keeper().rotate(t.Context()))
			}
		})
	}
}

// TestKeeper_ConfigMapForged: what is written into the ConfigMap does not become trusted.
func TestKeeper_ConfigMapForged(t *testing.T) {
	w := newWorld(t)
	k := w.keeper()
	must(t, k.rotate(t.Context()))
	want := w.bundle(t)
	forged := foreign(t)
	m := &corev1.ConfigMap{}
	must(t, w.Get(t.Context(), published, m))
	m.Data = map[string]string{KeyAuthorities: m.Data[KeyAuthorities] + string(forged[KeyAuthorities]), "other": "x"}
	must(t, w.Update(t.Context(), m))
	must(t, k.rotate(t.Context()))
	must(t, w.Get(t.Context(), published, m))
	if !bytes.Equal(want, []byte(m.Data[KeyAuthorities])) || len(m.Data) != 1 {
		t.Errorf("it is %v", m.Data)
	}
}

func TestKeeper_InvalidSecret(t *testing.T) {
	for name, edit := range map[string]func(*world, *corev1.Secret){
		"is none":          func(_ *world, s *corev1.Secret) { s.Data[corev1.TLSCertKey] = []byte("x") },
		"is another's key": func(_ *world, s *corev1.Secret) { s.Data[corev1.TLSPrivateKeyKey] = []byte("x") },
		"has expired":      func(w *world, _ *corev1.Secret) { w.clock.SetTime(w.clock.Now().Add(lifetime + time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.keeper()
			must(t, k.rotate(t.Context()))
			was := w.certify(t)
			s := &corev1.Secret{}
			must(t, w.Get(t.Context(), secret, s))
			edit(w, s)
			w.clock.SetTime(w.clock.Now().Add(time.Second))
			must(t, w.Update(t.Context(), s))
			must(t, k.rotate(t.Context()))
			now := w.certify(t)
			if bytes.Equal(was.RawIssuer, now.RawIssuer) {
				t.Error("it signs")
			}
			must(t, w.trusts(w.bundle(t), now))
		})
	}
}

func TestKeeper_MissingObjects(t *testing.T) {
	for want, missing := range map[string]client.Object{
		"Secret system/authority":     &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}},
		"ConfigMap nodes/authorities": &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: published.Namespace, Name: published.Name}},
	} {
		w := newWorld(t)
		must(t, w.Delete(t.Context(), missing))
		if err := w.keeper().rotate(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", want, err)
		}
	}
}
