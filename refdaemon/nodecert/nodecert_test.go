// SPDX-License-Identifier: Apache-2.0

package nodecert_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/virtloom/virtloom/refdaemon/authority"
	"github.com/virtloom/virtloom/refdaemon/nodecert"
)

// signer answers the requests of an agent as a controller does, or denies them.
type signer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu     sync.Mutex
	deny   bool
	asked  int
	signed []byte
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	c, err := x509.ParseCertificate(der)
	must(t, err)
	return &signer{t: t, key: key, cert: c}
}

func (s *signer) bundle() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw}))
}

// create is asked when a request is created.
func (s *signer) create(a clienttesting.Action) (bool, runtime.Object, error) {
	r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest).DeepCopy()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	r.Name = "request"
	block, _ := pem.Decode(r.Spec.Request)
	q, err := x509.ParseCertificateRequest(block.Bytes)
	must(s.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(1 + s.asked)), DNSNames: q.DNSNames, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, s.cert, q.PublicKey, s.key)
	must(s.t, err)
	s.signed = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return true, r, nil
}

// get is asked for the answer.
func (s *signer) get(clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "request"}}
	if s.deny {
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Message: "not today"}}
	} else {
		r.Status.Certificate = s.signed
	}
	return true, r, nil
}

func (s *signer) set(deny bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deny = deny
}

// TestKeeper_UnhappyPaths: denied, then signed by an authority that is not known yet, and denied again when the certificate is to
// be replaced, which keeps the old one in use until it expires.
func TestKeeper_UnhappyPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSigner(t)
		s.set(true)
		maps := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: published.Namespace, Name: published.Name}, Data: map[string]string{authority.KeyAuthorities: "x"}}
		c := fake.NewClientset(maps)
		c.PrependReactor("create", "certificatesigningrequests", s.create)
		c.PrependReactor("get", "certificatesigningrequests", s.get)
		k := &nodecert.Keeper{NodeName: "node-a", Client: c, Authorities: published, Random: func() float64 { return 0 }}
		run(t, k.Start)
		pass := func(d time.Duration) {
			time.Sleep(d) // in the bubble
			synctest.Wait()
		}
		pass(time.Minute)
		if err := k.Check(nil); err == nil || !strings.Contains(err.Error(), "not today") {
			t.Fatalf("denied: %v", err)
		}
		s.set(false)
		pass(5 * time.Minute)
		if err := k.Check(nil); err == nil || !strings.Contains(err.Error(), "no authorities") {
			t.Fatalf("signed by an authority that is not known: %v", err)
		}
		maps.Data[authority.KeyAuthorities] = s.bundle()
		_, err := c.CoreV1().ConfigMaps(published.Namespace).Update(t.Context(), maps, metav1.UpdateOptions{})
		must(t, err)
		pass(2 * time.Minute)
		must(t, k.Check(nil))
		first, _, err := k.Current()
		must(t, err)
		s.set(true)
		pass(9 * time.Hour) // it should have been replaced after six
		must(t, k.Check(nil))
		if now, _, err := k.Current(); err != nil || now.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) != 0 {
			t.Fatalf("the old one is not in use: %v", err)
		}
		pass(2 * time.Hour)
		if err := k.Check(nil); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Fatalf("it has expired: %v", err)
		}
		s.set(false)
		pass(2 * time.Minute)
		must(t, k.Check(nil))
		s.mu.Lock()
		asked := s.asked
		s.mu.Unlock()
		if asked > 400 { // at most one a minute, for hours
			t.Errorf("it has asked %d times", asked)
		}
	})
}

func TestKeeper_MissingFields(t *testing.T) {
	if err := (&nodecert.Keeper{}).Start(t.Context()); err == nil {
		t.Error("it starts without a name")
	}
}
