// SPDX-License-Identifier: Apache-2.0

package nodecert_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/authority"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
	"github.com/virtloom/virtloom/refdaemon/nodecert"
)

const (
	patience = 2 * time.Minute
	nodeA    = "sim-0"
	nodeB    = "sim-1"
	lifetime = 6 * time.Second
)

var (
	secret    = types.NamespacedName{Namespace: rbac.Namespace, Name: "virtloom-node-authority"}
	published = types.NamespacedName{Namespace: rbac.NodeNamespace, Name: "virtloom-node-authorities"}
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a cluster with an authority, which has the rights of the controller, and two nodes.
type world struct {
	*rig.Rig
	admin kubernetes.Interface
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	w := &world{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 2})}
	w.admin = clientset(t, w.Config(rig.UserAdmin))
	mgr, err := ctrl.NewManager(w.Config(rig.UserController), ctrl.Options{
		Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(), Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&certificatesv1.CertificateSigningRequest{}: {Field: authority.Requests()}}},
	})
	must(t, err)
	must(t, mgr.Add(&authority.Keeper{
		Reader: mgr.GetAPIReader(), Writer: mgr.GetClient(), Secret: secret, ConfigMap: published, Lifetime: 4 * lifetime, CertificateLifetime: lifetime,
	}))
	must(t, (&authority.Signer{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Secret: secret, Lifetime: lifetime}).SetupWithManager(mgr))
	run(t, mgr.Start)
	return w
}

// run runs something until the test ends.
func run(t *testing.T, start func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func clientset(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}

// pod makes the Pod of an agent.
func (w *world) pod(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	made, err := w.admin.CoreV1().Pods(rbac.NodeNamespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: "virtloom-node", NodeName: node, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "node", Image: "virtloom.test/agent:1"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	return made
}

// token has the credentials of a Pod of the agents; of none, if it is nil.
func (w *world) token(t *testing.T, pod *corev1.Pod) kubernetes.Interface {
	t.Helper()
	q := &authenticationv1.TokenRequest{}
	if pod != nil {
		q.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	answer, err := w.admin.CoreV1().ServiceAccounts(rbac.NodeNamespace).CreateToken(t.Context(), "virtloom-node", q, metav1.CreateOptions{})
	must(t, err)
	c := rest.AnonymousClientConfig(w.Config(rig.UserAdmin))
	c.BearerToken = answer.Status.Token
	return clientset(t, c)
}

// agent is the part of an agent that migrates.
type agent struct {
	*nodecert.Keeper
	*migrationproxy.Proxy
	sockets string
}

func (w *world) agent(t *testing.T, node string) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "vl") // short, for names of sockets
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	a := &agent{sockets: dir, Keeper: &nodecert.Keeper{NodeName: node, Client: w.token(t, w.pod(t, "agent-"+node, node)), Authorities: published}}
	a.Proxy, err = migrationproxy.NewProxy(migrationproxy.Options{
		Address: "127.0.0.1", NodeName: node, Certificates: a.Keeper,
		Sockets: func(context.Context, string) (domain.Sockets, error) {
			return domain.Sockets{Own: true, Control: filepath.Join(dir, "libvirt-sock"), Outside: dir, Inside: dir}, nil
		},
	})
	must(t, err)
	if err := a.Check(nil); err == nil {
		t.Error("it is ready without a certificate")
	}
	if _, _, err := a.Current(); err == nil {
		t.Error("it has a certificate before it has asked")
	}
	run(t, a.Keeper.Start)
	return a
}

func (a *agent) await(t *testing.T) {
	t.Helper()
	var last error
	if rigtest.Poll(t.Context(), patience, func(context.Context) (bool, error) {
		last = a.Check(nil)
		return last == nil, nil
	}) != nil {
		t.Fatal(last)
	}
}

// serial is that of the certificate in use.
func (a *agent) serial(t *testing.T) string {
	t.Helper()
	own, _, err := a.Current()
	must(t, err)
	return own.Leaf.SerialNumber.String()
}

// echo plays the target's hypervisor.
func (a *agent) echo(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(a.sockets, "libvirt-sock"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// says sends text through a stream and waits for it to come back.
func says(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if string(got) != text {
		return fmt.Errorf("got %q, want %q", got, text)
	}
	return nil
}

// TestKeeper_RotationDuringMigration: certificates of seconds, and then their authorities, are replaced while a stream of a
// migration runs, which goes on; new streams find trust at every moment.
func TestKeeper_RotationDuringMigration(t *testing.T) {
	w := newWorld(t)
	source, target := w.agent(t, nodeA), w.agent(t, nodeB)
	source.await(t)
	target.await(t)
	target.echo(t)
	p := transport.Tunnel{Key: "8a1e6e44-0b5e-4c1c-9d5e-5a3f1f0f7a11", Migration: "m1", Domain: "ns_vm", Peer: nodeA}
	at, err := target.Listen(t.Context(), p)
	must(t, err)
	p.Peer = nodeB
	route, err := source.Dial(t.Context(), p, at)
	must(t, err)
	t.Cleanup(func() {
		source.Close(p.Key)
		target.Close(p.Key)
	})
	_, path, _ := strings.Cut(route.DestinationURI, "socket=")
	open := func() net.Conn {
		c, err := net.Dial("unix", path)
		must(t, err)
		return c
	}
	first := open()
	defer first.Close()
	certificates, bundles := map[string]bool{}, map[string]bool{}
	must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		if err := says(first, "still there"); err != nil {
			return false, fmt.Errorf("the open stream: %w", err)
		}
		next := open()
		defer next.Close()
		if err := says(next, "new"); err != nil {
			return false, fmt.Errorf("a new stream: %w", err)
		}
		m, err := w.admin.CoreV1().ConfigMaps(published.Namespace).Get(ctx, published.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		bundles[m.Data[authority.KeyAuthorities]] = true
		certificates[source.serial(t)], certificates[target.serial(t)] = true, true
		return len(certificates) >= 10 && len(bundles) >= 4, nil // two authorities have come, and one has gone
	}))

	// The authority is compromised.
	was := source.serial(t)
	_, err = w.admin.CoreV1().Secrets(secret.Namespace).Patch(t.Context(), secret.Name, types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{})
	must(t, err)
	must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		m, err := w.admin.CoreV1().ConfigMaps(published.Namespace).Get(ctx, published.Name, metav1.GetOptions{})
		if err != nil || strings.Count(m.Data[authority.KeyAuthorities], "BEGIN") != 1 || bundles[m.Data[authority.KeyAuthorities]] {
			return false, err
		}
		_, roots, err := source.Current()
		return err == nil && source.serial(t) != was && target.Check(nil) == nil && roots != nil, nil
	}))
	must(t, says(first, "and now"))
}

// TestSigner_Strangers asks a real API server for certificates that no client may have.
func TestSigner_Strangers(t *testing.T) {
	w := newWorld(t)
	a := w.pod(t, "agent", nodeA)
	gone := w.pod(t, "gone", nodeA)
	late := w.token(t, gone)
	for name, tt := range map[string]struct {
		by         kubernetes.Interface
		node, want string // why it is denied; empty if it is granted
	}{
		"the agent":        {by: w.token(t, a), node: nodeA},
		"another node":     {by: w.token(t, a), node: nodeB, want: "not only that of its creator's node"},
		"an unbound token": {by: w.token(t, nil), node: nodeA, want: "is not bound to a Pod"},
		"an administrator": {by: w.admin, node: nodeA, want: "not a node agent"},
		"an agent as user": {by: clientset(t, w.Config(rig.NodeUser(nodeA))), node: nodeA, want: "not a node agent"},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := tt.by.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request(t, tt.node), metav1.CreateOptions{})
			must(t, err)
			r := w.decided(t, made.Name)
			var why string
			for _, c := range r.Status.Conditions {
				if c.Type == certificatesv1.CertificateDenied {
					why = c.Message
				}
			}
			if (len(r.Status.Certificate) > 0) != (tt.want == "") || !strings.Contains(why, tt.want) {
				t.Errorf("%+v", r.Status)
			}
			// No other client decides about it.
			for _, who := range []kubernetes.Interface{w.token(t, a), clientset(t, w.Config(rig.NodeUser(nodeA)))} {
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"})
				if _, err := who.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
					t.Errorf("an agent approves: %v", err)
				}
			}
		})
	}
	t.Run("the controller, of another signer", func(t *testing.T) {
		r := request(t, nodeA)
		r.Spec.SignerName, r.Spec.Usages = certificatesv1.KubeAPIServerClientSignerName, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}
		made, err := w.admin.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{})
		must(t, err)
		made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"}}
		c := clientset(t, w.Config(rig.UserController))
		if _, err := c.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), made.Name, made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the controller approves: %v", err)
		}
		if _, err := w.token(t, a).CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("an agent asks another signer: %v", err)
		}
	})
	t.Run("a Pod that is gone", func(t *testing.T) {
		must(t, w.admin.CoreV1().Pods(gone.Namespace).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}))
		made, err := late.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request(t, nodeA), metav1.CreateOptions{})
		if err != nil { // the API server does not take its token any more
			if !apierrors.IsUnauthorized(err) {
				t.Error(err)
			}
			return
		}
		if r := w.decided(t, made.Name); len(r.Status.Certificate) > 0 {
			t.Error("it gets a certificate")
		}
	})
}

func request(t *testing.T, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{node}}, key)
	must(t, err)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: authority.SignerName, Usages: authority.Usages(),
			Request: bytes.TrimSpace(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})),
		},
	}
}

// decided waits until a request is.
func (w *world) decided(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	var r *certificatesv1.CertificateSigningRequest
	must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (_ bool, err error) {
		r, err = w.admin.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		denied := false
		for _, c := range r.Status.Conditions {
			denied = denied || c.Type == certificatesv1.CertificateDenied
		}
		return denied || len(r.Status.Certificate) > 0, nil
	}))
	return r
}
