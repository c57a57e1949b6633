// SPDX-License-Identifier: Apache-2.0

package servingcert_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/refdaemon/servingcert"
)

const (
	lifetime = 90 * 24 * time.Hour
	host     = "hooks.system.svc"
)

var secret = types.NamespacedName{Namespace: "system", Name: "serving"}

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
	service := admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "system", Name: "hooks"}}
	meta := metav1.ObjectMeta{Name: servingcert.Configuration}
	return &world{clock: clocktesting.NewFakePassiveClock(time.Now()), WithWatch: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}},
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "m.x.y", ClientConfig: service}}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{
			{Name: "v.x.y", ClientConfig: service}, {Name: "w.x.y", ClientConfig: service},
		}},
	).Build()}
}

func (w *world) keeper() *servingcert.Keeper {
	return &servingcert.Keeper{Reader: w, Writer: w, Secret: secret, Lifetime: lifetime, Clock: w.clock}
}

// bundles are the authorities that API servers are given, by webhook.
func (w *world) bundles(t *testing.T) map[string][]byte {
	t.Helper()
	var (
		m admissionregistrationv1.MutatingWebhookConfiguration
		v admissionregistrationv1.ValidatingWebhookConfiguration
	)
	must(t, w.Get(t.Context(), client.ObjectKey{Name: servingcert.Configuration}, &m))
	must(t, w.Get(t.Context(), client.ObjectKey{Name: servingcert.Configuration}, &v))
	out := map[string][]byte{m.Webhooks[0].Name: m.Webhooks[0].ClientConfig.CABundle}
	for _, h := range v.Webhooks {
		out[h.Name] = h.ClientConfig.CABundle
	}
	return out
}

func served(t *testing.T, k *servingcert.Keeper) *tls.Certificate {
	t.Helper()
	c, err := k.GetCertificate(nil)
	must(t, err)
	return c
}

// trusted fails unless every API server takes what is served.
func (w *world) trusted(t *testing.T, name string, keepers ...*servingcert.Keeper) {
	t.Helper()
	for _, k := range keepers {
		leaf, err := x509.ParseCertificate(served(t, k).Certificate[0])
		must(t, err)
		for hook, bundle := range w.bundles(t) {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(bundle)
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: w.clock.Now()}); err != nil {
				t.Fatalf("%s: %v", hook, err)
			}
		}
	}
}

func TestKeeper_FirstCertificate(t *testing.T) {
	w := newWorld(t)
	k := w.keeper()
	if c, err := k.GetCertificate(nil); err == nil {
		t.Errorf("before it looked it serves %v", c)
	}
	must(t, k.Look(t.Context()))
	w.trusted(t, host, k)
	first := served(t, k).Certificate[0]
	again := w.keeper() // as after a restart
	must(t, again.Look(t.Context()))
	if !bytes.Equal(first, served(t, again).Certificate[0]) {
		t.Error("a restart makes another certificate")
	}
	if k.NeedLeaderElection() {
		t.Error("only one replica has a certificate")
	}
}

// TestKeeper_Rotation goes through three lives of a certificate with two replicas that look one after the other: API servers
// take what each serves at every moment.
func TestKeeper_Rotation(t *testing.T) {
	w := newWorld(t)
	a, b := w.keeper(), w.keeper()
	must(t, a.Look(t.Context()))
	must(t, b.Look(t.Context()))
	seen := map[string]bool{}
	for range 3 * 30 { // the pace of a Keeper
		w.trusted(t, host, a, b)
		must(t, a.Look(t.Context()))
		w.trusted(t, host, a, b)
		must(t, b.Look(t.Context()))
		seen[string(served(t, a).Certificate[0])] = true
		w.clock.SetTime(w.clock.Now().Add(lifetime / 30))
	}
	if len(seen) < 4 {
		t.Errorf("%d certificates were served", len(seen))
	}
}

// TestKeeper_ServesNextAfterTrust: what API servers have not been given is not shown to them.
func TestKeeper_ServesNextAfterTrust(t *testing.T) {
	w := newWorld(t)
	k := w.keeper()
	must(t, k.Look(t.Context()))
	first := served(t, k).Certificate[0]
	w.clock.SetTime(w.clock.Now().Add(lifetime * 3 / 4))
	refused := apierrors.NewForbidden(admissionregistrationv1.Resource("x"), "x", nil)
	k.Writer = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return refused
		},
	})
	for range 3 {
		if err := k.Look(t.Context()); !apierrors.IsForbidden(err) {
			t.Fatalf("the authority is refused: %v", err)
		}
		if !bytes.Equal(first, served(t, k).Certificate[0]) {
			t.Fatal("a certificate is served whose authority no API server has")
		}
	}
	k.Writer = w
	must(t, k.Look(t.Context()))
	must(t, k.Look(t.Context()))
	if bytes.Equal(first, served(t, k).Certificate[0]) {
		t.Error("the certificate is not replaced")
	}
	w.trusted(t, host, k)
}

func TestKeeper_Conflict(t *testing.T) {
	w := newWorld(t)
	k, other := w.keeper(), w.keeper()
	k.Writer = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			must(t, other.Look(ctx))
			return c.Update(ctx, o, opts...)
		},
	})
	if err := k.Look(t.Context()); !apierrors.IsConflict(err) {
		t.Fatalf("both have written: %v", err)
	}
	must(t, k.Look(t.Context()))
	w.trusted(t, host, k, other)
}

func TestKeeper_InvalidSecret(t *testing.T) {
	for name, edit := range map[string]func(*testing.T, *world, *corev1.Secret){
		"is none":          func(_ *testing.T, _ *world, s *corev1.Secret) { s.Data["tls.crt"] = []byte("x") },
		"is another's key": func(_ *testing.T, _ *world, s *corev1.Secret) { s.Data["tls.key"] = []byte("x") },
		"has no authority": func(_ *testing.T, _ *world, s *corev1.Secret) { delete(s.Data, "ca.crt") },
		"has expired": func(_ *testing.T, w *world, _ *corev1.Secret) {
			w.clock.SetTime(w.clock.Now().Add(lifetime + time.Second))
		},
		"is for another name": func(t *testing.T, w *world, _ *corev1.Secret) { w.move(t, "https://192.0.2.7:9443/x") },
		"is for another DNS":  func(t *testing.T, w *world, _ *corev1.Secret) { w.move(t, "https://elsewhere.example:9443/x") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := w.keeper()
			must(t, k.Look(t.Context()))
			first := served(t, k).Certificate[0]
			s := &corev1.Secret{}
			must(t, w.Get(t.Context(), secret, s))
			edit(t, w, s)
			must(t, w.Update(t.Context(), s))
			must(t, k.Look(t.Context()))
			w.trusted(t, host, k)
			if bytes.Equal(first, served(t, k).Certificate[0]) {
				t.Error("it is served")
			}
		})
	}
}

// move has API servers ask the first webhook elsewhere.
func (w *world) move(t *testing.T, url string) {
	t.Helper()
	var m admissionregistrationv1.MutatingWebhookConfiguration
	must(t, w.Get(t.Context(), client.ObjectKey{Name: servingcert.Configuration}, &m))
	m.Webhooks[0].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: ptr.To(url)}
	must(t, w.Update(t.Context(), &m))
}

func TestKeeper_MissingObjects(t *testing.T) {
	for want, missing := range map[string]client.Object{
		"Secret system/serving":      &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}},
		"the webhook configurations": &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: servingcert.Configuration}},
	} {
		w := newWorld(t)
		must(t, w.Delete(t.Context(), missing))
		if err := w.keeper().Look(t.Context()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "come") {
			t.Errorf("without %s: %v", want, err)
		}
	}
}
