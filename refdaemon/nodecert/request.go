// SPDX-License-Identifier: Apache-2.0

package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/virtloom/virtloom/refdaemon/authority"
)

const (
	// An answer is asked for after askFirst, then in steps that double up to askMost: a request without an answer is not
	// repeated, as all would be answered in the end.
	askFirst, askMost = 100 * time.Millisecond, 15 * time.Second
	// knownWithin is the time in which the authority of a new certificate has to become known.
	knownWithin = 15 * time.Second
)

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=create;get
// +kubebuilder:rbac:namespace=virtloom-node,groups="",resources=configmaps,resourceNames=virtloom-node-authorities,verbs=list;watch

// replace obtains a certificate for a new key, and takes it into use once its authority is known.
func (k *Keeper) replace(ctx context.Context) error {
	key, request, err := k.request()
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	requests := k.Client.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "virtloom-node-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: authority.SignerName, Request: request, Usages: authority.Usages()},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("request a certificate: %w", err)
	}
	text, err := k.answer(ctx, made.Name)
	if err != nil {
		return fmt.Errorf("CertificateSigningRequest %s: %w", made.Name, err)
	}
	c, err := tls.X509KeyPair(text, key)
	if err != nil {
		return fmt.Errorf("CertificateSigningRequest %s: the certificate: %w", made.Name, err)
	}
	if err := k.use(ctx, &c); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Obtained the certificate of the node", "request", made.Name, "notAfter", c.Leaf.NotAfter)
	return nil
}

// request returns a new key and the request for its certificate, both in PEM.
func (k *Keeper) request() (key, request []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{k.NodeName}}, private)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

// answer waits for the certificate, for as long as the request exists.
func (k *Keeper) answer(ctx context.Context, name string) ([]byte, error) {
	logger := log.FromContext(ctx)
	for wait := askFirst; ; wait = min(2*wait, askMost) {
		k.pause(ctx, wait, nil)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, err := k.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, c := range r.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				return nil, fmt.Errorf("it is %s: %s", c.Type, c.Message)
			}
		}
		if len(r.Status.Certificate) > 0 {
			return r.Status.Certificate, nil
		}
		if wait == askMost {
			logger.Info("The certificate of the node is not signed yet; does a controller of virtloom lead?", "request", name)
		}
		k.fail(fmt.Errorf("the controller has not answered CertificateSigningRequest %s yet", name))
	}
}

// use takes a certificate into use, as soon as the authorities are known by which others verify it.
func (k *Keeper) use(ctx context.Context, c *tls.Certificate) error {
	deadline := k.now().Add(knownWithin)
	for {
		changed, err := k.adopt(c)
		if err == nil {
			return nil
		}
		left := deadline.Sub(k.now())
		if left <= 0 || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		k.pause(ctx, left, changed)
	}
}

// follow watches the authorities until the context ends.
func (k *Keeper) follow(ctx context.Context) {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, k.Authorities.Name).String()
	maps := k.Client.CoreV1().ConfigMaps(k.Authorities.Namespace)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = one
			return maps.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = one
			return maps.Watch(ctx, o)
		},
	}, k.Client)
	informer := cache.NewSharedInformer(source, &corev1.ConfigMap{}, 0)
	take := func(o any) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			k.read(ctx, m)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, now any) { take(now) }})
	if err != nil {
		log.FromContext(ctx).Error(err, "Watching the authorities failed")
		return
	}
	informer.RunWithContext(ctx)
}

// read takes the authorities of the ConfigMap. One without any is being repaired by the controller; those before stay.
func (k *Keeper) read(ctx context.Context, m *corev1.ConfigMap) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.Data[authority.KeyAuthorities])) {
		log.FromContext(ctx).Info("There are no authorities yet", "configMap", k.Authorities)
		return
	}
	k.trust(roots)
}
