// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
	"github.com/virtloom/virtloom/refdaemon/rotation"
)

const (
	reasonGranted = "NodeAgent"
	reasonDenied  = "NotNodeAgent"
	serialBits    = 120
	// longestMessage is that of a condition, in bytes: what it quotes was written by who is denied.
	longestMessage = 1024
)

// Requests selects the requests of the signer, for the cache of its Client.
func Requests() fields.Selector { return fields.OneTermEqualSelector("spec.signerName", SignerName) }

// Signer decides about requests of its signer, and signs the approved ones.
type Signer struct {
	// Client reads requests, from a cache (see Requests), and writes them.
	Client client.Client
	// Reader reads Pods and the Secret from the API server itself.
	Reader client.Reader
	// Secret names the Secret that a Keeper maintains.
	Secret types.NamespacedName
	// Lifetime is that of certificates, unless a request is for a shorter one.
	Lifetime time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// SetupWithManager registers the signer, for the leader among replicas.
func (s *Signer) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("node-certificates").For(&certificatesv1.CertificateSigningRequest{}).Complete(s)
}

// Removing requests is left to Kubernetes' own controller (csrcleaner), an hour after they were decided.
//
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval;certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=virtloom.dev/node-agent,verbs=approve;sign
// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// Reconcile decides about one request.
func (s *Signer) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	r := &certificatesv1.CertificateSigningRequest{}
	if err := s.Client.Get(ctx, q.NamespacedName, r); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if r.Spec.SignerName != SignerName || len(r.Status.Certificate) > 0 || hasCondition(r, certificatesv1.CertificateDenied) || hasCondition(r, certificatesv1.CertificateFailed) {
		return reconcile.Result{}, nil
	}
	key, node, refused, err := s.decide(ctx, &r.Spec)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case refused != nil:
		return reconcile.Result{}, s.deny(ctx, r, refused)
	}
	if !hasCondition(r, certificatesv1.CertificateApproved) {
		setCondition(r, certificatesv1.CertificateApproved, reasonGranted, "the node agent of node "+node+" asks for its certificate")
		if err := s.Client.SubResource("approval").Update(ctx, r); err != nil {
			return reconcile.Result{}, fmt.Errorf("approve request %s: %w", r.Name, err)
		}
	}
	text, err := s.sign(ctx, key, node, r.Spec.ExpirationSeconds)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("sign request %s: %w", r.Name, err)
	}
	r.Status.Certificate = text
	if err := s.Client.Status().Update(ctx, r); err != nil {
		return reconcile.Result{}, fmt.Errorf("answer request %s: %w", r.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Signed the certificate of a node agent", "node", node)
	return reconcile.Result{}, nil
}

// decide returns the key to certify and the name of its node, or why there is none.
func (s *Signer) decide(ctx context.Context, spec *certificatesv1.CertificateSigningRequestSpec) (key *ecdsa.PublicKey, node string, refused, err error) {
	who, refused := creatorOf(spec)
	if refused != nil {
		return nil, "", refused, nil
	}
	pod := &corev1.Pod{}
	switch err := s.Reader.Get(ctx, types.NamespacedName{Namespace: rbac.NodeNamespace, Name: who.pod}, pod); {
	case apierrors.IsNotFound(err):
		pod = nil
	case err != nil:
		return nil, "", nil, fmt.Errorf("read Pod %s: %w", who.pod, err)
	}
	if refused := who.check(pod); refused != nil {
		return nil, "", refused, nil
	}
	key, refused = keyOf(spec, who.node)
	return key, who.node, refused, nil
}

// deny denies a request. One that another client has approved can only fail.
func (s *Signer) deny(ctx context.Context, r *certificatesv1.CertificateSigningRequest, why error) error {
	ctrl.LoggerFrom(ctx).Info("Denied a certificate", "request", r.Name, "user", r.Spec.Username, "reason", why.Error())
	var err error
	message := strings.ToValidUTF8(why.Error()[:min(len(why.Error()), longestMessage)], "")
	if hasCondition(r, certificatesv1.CertificateApproved) {
		setCondition(r, certificatesv1.CertificateFailed, reasonDenied, message)
		err = s.Client.Status().Update(ctx, r)
	} else {
		setCondition(r, certificatesv1.CertificateDenied, reasonDenied, message)
		err = s.Client.SubResource("approval").Update(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("deny request %s: %w", r.Name, err)
	}
	return nil
}

// sign returns a certificate for the agent of a node. Of the request it has the key and nothing else.
func (s *Signer) sign(ctx context.Context, key *ecdsa.PublicKey, node string, seconds *int32) ([]byte, error) {
	authority, signer, err := force(ctx, s.Reader, s.Secret)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	at, life := rotation.Now(s.Clock), s.Lifetime
	if seconds != nil {
		life = min(life, time.Duration(*seconds)*time.Second)
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{node}, NotBefore: at.Add(-rotation.Early), NotAfter: at.Add(life), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if len(node) <= longestCommonName {
		template.Subject = pkix.Name{CommonName: node}
	}
	if template.NotAfter.After(authority.NotAfter) {
		template.NotAfter = authority.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, key, signer)
	if err != nil {
		return nil, err
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return cert.EncodeCertificates(made)
}

func hasCondition(r *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == condition })
}

func setCondition(r *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType, reason, message string) {
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now(),
	})
}
