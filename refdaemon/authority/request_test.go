// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// attempt is a request with its surroundings.
type attempt struct {
	request x509.CertificateRequest
	key     crypto.Signer
	text    []byte // replaces the request
	spec    certificatesv1.CertificateSigningRequestSpec
	pod     *corev1.Pod
}

// sound is an attempt that is granted.
func sound(t *testing.T) *attempt {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rbac.NodeNamespace, Name: "agent-1", UID: "uid-1"}}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName, pod.Status.Phase = "node-a", account, corev1.PodRunning
	return &attempt{
		key: key, request: x509.CertificateRequest{DNSNames: []string{"node-a"}}, pod: pod,
		spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: SignerName, Username: "system:serviceaccount:virtloom-node:virtloom-node", Usages: Usages(),
			Extra: map[string]certificatesv1.ExtraValue{claimNode: {"node-a"}, claimPod: {"agent-1"}, claimPodUID: {"uid-1"}},
		},
	}
}

// decide returns why the attempt is refused.
func (a *attempt) decide(t *testing.T) error {
	t.Helper()
	a.spec.Request = a.text
	if a.text == nil {
		der, err := x509.CreateCertificateRequest(rand.Reader, &a.request, a.key)
		must(t, err)
		a.spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	b := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
	if a.pod != nil {
		b = b.WithObjects(a.pod)
	}
	_, node, refused, err := (&Signer{Reader: b.Build()}).decide(t.Context(), &a.spec)
	must(t, err)
	if refused == nil && node != "node-a" {
		t.Errorf("it is for %s", node)
	}
	return refused
}

func TestDecide_Requests(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	must(t, err)
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	for name, tt := range map[string]struct {
		edit func(*attempt)
		want string // empty if it is granted
	}{
		"sound":                    {edit: func(*attempt) {}},
		"with its name as subject": {edit: func(a *attempt) { a.request.Subject.CommonName = "node-a" }},
		"of a Pod that ends": {edit: func(a *attempt) {
			a.pod.DeletionTimestamp, a.pod.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x/y"}
		}},

		"of a user":                   {edit: func(a *attempt) { a.spec.Username = "kubernetes-admin" }, want: "not a node agent"},
		"of the group of agents":      {edit: func(a *attempt) { a.spec.Username, a.spec.Groups = "virtloom:node:node-a", []string{rbac.NodesGroup} }, want: "not a node agent"},
		"of the name elsewhere":       {edit: func(a *attempt) { a.spec.Username = "system:serviceaccount:shop:virtloom-node" }, want: "not a node agent"},
		"of the controller":           {edit: func(a *attempt) { a.spec.Username = "system:serviceaccount:virtloom-system:virtloom-controller" }, want: "not a node agent"},
		"of no Pod":                   {edit: func(a *attempt) { a.spec.Extra = nil }, want: "is not bound to a Pod"},
		"without a node":              {edit: func(a *attempt) { delete(a.spec.Extra, claimNode) }, want: claimNode},
		"without a UID":               {edit: func(a *attempt) { delete(a.spec.Extra, claimPodUID) }, want: claimPodUID},
		"of two nodes":                {edit: func(a *attempt) { a.spec.Extra[claimNode] = []string{"node-a", "node-b"} }, want: claimNode},
		"of a Pod that is gone":       {edit: func(a *attempt) { a.pod = nil }, want: "does not exist"},
		"of a Pod that was replaced":  {edit: func(a *attempt) { a.pod.UID = "uid-2" }, want: "another one of the name"},
		"of a Pod of another account": {edit: func(a *attempt) { a.pod.Spec.ServiceAccountName = "default" }, want: "does not run as"},
		"of a Pod in another place":   {edit: func(a *attempt) { a.pod.Namespace = "shop" }, want: "does not exist"},
		"of a Pod on another node":    {edit: func(a *attempt) { a.pod.Spec.NodeName = "node-b" }, want: `is on node "node-b"`},
		"of a Pod that has ended":     {edit: func(a *attempt) { a.pod.Status.Phase = corev1.PodFailed }, want: "has ended"},

		"for another node":   {edit: func(a *attempt) { a.request.DNSNames = []string{"node-b"} }, want: "not only that of its creator's node"},
		"for two nodes":      {edit: func(a *attempt) { a.request.DNSNames = []string{"node-a", "node-b"} }, want: "not only that"},
		"for a wildcard":     {edit: func(a *attempt) { a.request.DNSNames = []string{"*"} }, want: "not only that"},
		"for no name":        {edit: func(a *attempt) { a.request.DNSNames = nil }, want: "not only that"},
		"for an address":     {edit: func(a *attempt) { a.request.IPAddresses = []net.IP{{192, 0, 2, 1}} }, want: "not only that"},
		"for a URI":          {edit: func(a *attempt) { a.request.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, want: "not only that"},
		"for a mailbox":      {edit: func(a *attempt) { a.request.EmailAddresses = []string{"a@b"} }, want: "not only that"},
		"of another subject": {edit: func(a *attempt) { a.request.Subject.CommonName = "system:admin" }, want: "its subject"},
		"of an organization": {edit: func(a *attempt) {
			a.request.Subject = pkix.Name{CommonName: "node-a", Organization: []string{"system:masters"}}
		}, want: "its subject"},
		"as an authority": {edit: func(a *attempt) {
			a.request.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}, want: "extension 2.5.29.19"},
		"to sign code":         {edit: func(a *attempt) { a.spec.Usages = append(Usages(), certificatesv1.UsageCodeSigning) }, want: "its usages"},
		"to sign certificates": {edit: func(a *attempt) { a.spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageCertSign} }, want: "its usages"},
		"for half of its use":  {edit: func(a *attempt) { a.spec.Usages = Usages()[:2] }, want: "its usages"},
		"with another curve":   {edit: func(a *attempt) { a.key = other }, want: "P-256"},
		"with RSA":             {edit: func(a *attempt) { a.key = large }, want: "P-256"},
		"with Ed25519":         {edit: func(a *attempt) { a.key = edwards }, want: "P-256"},
		"that is none":         {edit: func(a *attempt) { a.text = []byte("x") }, want: "not one certificate request"},
		"that is empty":        {edit: func(a *attempt) { a.text = []byte{} }, want: "not one certificate request"},
		"that is no request inside": {edit: func(a *attempt) {
			a.text = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, want: "cannot be parsed"},
		"that is huge": {edit: func(a *attempt) { a.text = []byte(strings.Repeat("x", largest+1)) }, want: "bytes, more than"},
	} {
		t.Run(name, func(t *testing.T) {
			a := sound(t)
			tt.edit(a)
			err := a.decide(t)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused: %v, want %q", err, tt.want)
			}
		})
	}
}

// TestDecide_SignedByAnotherKey: who asks has the key.
func TestDecide_SignedByAnotherKey(t *testing.T) {
	a := sound(t)
	must(t, a.decide(t))
	block, _ := pem.Decode(a.spec.Request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	a.text = pem.EncodeToMemory(block)
	if err := a.decide(t); err == nil || !strings.Contains(err.Error(), "does not have its key") {
		t.Errorf("refused: %v", err)
	}
}

func TestSign_Lifetime(t *testing.T) {
	w := newWorld(t)
	must(t, w.keeper().rotate(t.Context()))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	for name, tt := range map[string]struct {
		asks int32
		want time.Duration
	}{"shorter": {600, 10 * time.Minute}, "longer": {1 << 30, certificates}, "negative": {-1, 0}} {
		s := &Signer{Reader: w, Secret: secret, Lifetime: certificates, Clock: w.clock}
		text, err := s.sign(t.Context(), &key.PublicKey, strings.Repeat("n", 200), &tt.asks)
		must(t, err)
		block, _ := pem.Decode(text)
		c, err := x509.ParseCertificate(block.Bytes)
		must(t, err)
		if got := c.NotAfter.Sub(w.clock.Now()).Round(time.Minute); got != tt.want {
			t.Errorf("%s: valid for %s, want %s", name, got, tt.want)
		}
		if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature || len(c.ExtKeyUsage) != 2 || c.Subject.CommonName != "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestSigner_ApprovedByAnother: a request that an administrator approves is judged like any other.
func TestSigner_ApprovedByAnother(t *testing.T) {
	a := sound(t)
	a.request.DNSNames = []string{"node-b"}
	_ = a.decide(t)
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: a.spec}
	setCondition(r, certificatesv1.CertificateApproved, "ByHand", "")
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(r, a.pod).WithStatusSubresource(r).Build()
	s := &Signer{Client: c, Reader: c, Secret: secret, Lifetime: certificates}
	_, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "r"}})
	must(t, err)
	must(t, c.Get(t.Context(), client.ObjectKey{Name: "r"}, r))
	if len(r.Status.Certificate) > 0 || !hasCondition(r, certificatesv1.CertificateFailed) {
		t.Errorf("%+v", r.Status)
	}
}
