// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

const (
	account = "virtloom-node"
	// largest is the size, in bytes, of a request that is parsed.
	largest = 16 << 10
	// longestCommonName is X.509's limit; names of nodes may be longer.
	longestCommonName = 64
)

// Claims of a token that is bound to a Pod, as the API server records them.
const (
	claimNode   = "authentication.kubernetes.io/node-name"
	claimPod    = "authentication.kubernetes.io/pod-name"
	claimPodUID = "authentication.kubernetes.io/pod-uid"
)

// subjectAltName is the extension with the names of a certificate, the only one that a request may have.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// Usages returns the usages of an agent's certificate: it is for both ends of a migration.
func Usages() []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth}
}

// creator is who has made a request, by what the API server has recorded in it.
type creator struct {
	node, pod string
	uid       types.UID
}

// creatorOf returns the agent that has made a request; an error if it was another client.
func creatorOf(spec *certificatesv1.CertificateSigningRequestSpec) (creator, error) {
	if want := "system:serviceaccount:" + rbac.NodeNamespace + ":" + account; spec.Username != want {
		return creator{}, fmt.Errorf("its creator is %q, not a node agent (%s)", spec.Username, want)
	}
	var claims [3]string
	for i, name := range []string{claimNode, claimPod, claimPodUID} {
		if values := spec.Extra[name]; len(values) != 1 || values[0] == "" {
			return creator{}, fmt.Errorf("the token of its creator is not bound to a Pod on a node: it has no claim %s", name)
		}
		claims[i] = spec.Extra[name][0]
	}
	return creator{node: claims[0], pod: claims[1], uid: types.UID(claims[2])}, nil
}

// check compares the creator with its Pod, nil if there is none of the name. A Pod that is being deleted still finishes
// migrations.
func (c creator) check(pod *corev1.Pod) error {
	switch {
	case pod == nil:
		return fmt.Errorf("its creator's Pod %s does not exist", c.pod)
	case pod.UID != c.uid:
		return fmt.Errorf("its creator's Pod %s had UID %s; there is another one of the name", c.pod, c.uid)
	case pod.Spec.NodeName != c.node:
		return fmt.Errorf("its creator's Pod %s is on node %q, its token was for node %q", c.pod, pod.Spec.NodeName, c.node)
	case pod.Spec.ServiceAccountName != account:
		return fmt.Errorf("its creator's Pod %s does not run as %s", c.pod, account)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("its creator's Pod %s has ended", c.pod)
	}
	return nil
}

// keyOf returns the public key to certify for the agent of a node; an error if the request asks for anything but that.
func keyOf(spec *certificatesv1.CertificateSigningRequestSpec, node string) (*ecdsa.PublicKey, error) {
	if !slices.Equal(slices.Sorted(slices.Values(spec.Usages)), slices.Sorted(slices.Values(Usages()))) {
		return nil, fmt.Errorf("its usages are %q, not %q", spec.Usages, Usages())
	}
	if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
		return nil, fmt.Errorf("%q is not the name of a node: %s", node, strings.Join(problems, "; "))
	}
	r, err := parseRequest(spec.Request)
	if err != nil {
		return nil, err
	}
	if err := names(r, node); err != nil {
		return nil, err
	}
	key, able := r.PublicKey.(*ecdsa.PublicKey)
	if !able || key.Curve != elliptic.P256() {
		return nil, errors.New("its key is not an ECDSA key on P-256")
	}
	return key, nil
}

// parseRequest returns the one request of a text, which its key has signed.
func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	if len(text) > largest {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), largest)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, errors.New("it is not one certificate request in PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it cannot be parsed: %w", err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("its creator does not have its key: %w", err)
	}
	return r, nil
}

// names checks that a request is for the node, and for no other name.
func names(r *x509.CertificateRequest, node string) error {
	if len(r.DNSNames) != 1 || r.DNSNames[0] != node || len(r.IPAddresses)+len(r.EmailAddresses)+len(r.URIs) > 0 {
		return fmt.Errorf("its names are %q with %d addresses and URIs, not only that of its creator's node, %q",
			r.DNSNames, len(r.IPAddresses)+len(r.EmailAddresses)+len(r.URIs), node)
	}
	if got := r.Subject.String(); got != "" && got != "CN="+node || len(r.Subject.Names) > 1 {
		return fmt.Errorf("its subject is %q, neither empty nor CN=%s", got, node)
	}
	for _, e := range r.Extensions {
		if !e.Id.Equal(subjectAltName) {
			return fmt.Errorf("it asks for the extension %s", e.Id)
		}
	}
	return nil
}
