// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os/exec"
	"path/filepath"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
	"github.com/virtloom/virtloom/refdaemon/config/webhook"
)

// TestServingCertificate_Rotation: two replicas without any certificate have the API server ask them, and go on to be trusted
// while certificates of a few seconds come and go. They have the rights of the manifests, and no others.
func TestServingCertificate_Rotation(t *testing.T) {
	w := &world{Rig: rigtest.Start(t, rig.Options{})}
	w.Client = w.as(t, rig.UserAdmin)
	binary := build(t, t.TempDir())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rbac.Namespace, Name: "virtloom-webhook-serving"}}
	must(t, w.Create(t.Context(), secret))
	addresses := []string{freeAddress(t), freeAddress(t)}
	objects, err := webhook.Manifests(webhook.Endpoint{URL: "https://" + addresses[0]})
	must(t, err)
	for _, o := range objects {
		must(t, w.Create(t.Context(), o))
	}
	for i, address := range addresses {
		_, err := w.Run([]string{"controller-a", "controller-b"}[i], exec.Command(binary, "controller", "--kubeconfig", w.Kubeconfig(rig.UserController),
			"--leader-elect=false", "--webhook-address", address, "--webhook-cert-secret", rbac.Namespace+"/"+secret.Name, "--webhook-cert-lifetime=15s"))
		must(t, err)
	}
	w.awaitWebhooks(t)
	for _, address := range addresses {
		w.await(t, address+" to serve", func(ctx context.Context) (bool, error) { return w.handshake(ctx, address) == nil, nil })
	}
	seen := map[string]bool{}
	must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		for _, address := range addresses {
			if err := w.handshake(ctx, address); err != nil {
				return false, err
			}
		}
		if err := w.Create(ctx, guest("asked", "64Mi"), client.DryRunAll); err != nil {
			return false, err
		}
		if err := w.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
			return false, err
		}
		seen[string(secret.Data["tls.crt"])] = true
		return len(seen) > 3, nil
	}))
}

// build makes a refdaemon.
func build(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(dir, "refdaemon")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "github.com/virtloom/virtloom/refdaemon")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build refdaemon: %v\n%s", err, out)
	}
	return binary
}

// handshake connects as the API server does, with what it is given by each webhook.
func (w *world) handshake(ctx context.Context, address string) error {
	var c admissionregistrationv1.ValidatingWebhookConfiguration
	if err := w.Get(ctx, client.ObjectKey{Name: "virtloom"}, &c); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	for _, h := range c.Webhooks {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(h.ClientConfig.CABundle)
		dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: host}}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
	return nil
}
