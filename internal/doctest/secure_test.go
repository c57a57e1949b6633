// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// tokenOf returns one of a service account.
func tokenOf(t *testing.T, c kubernetes.Interface, namespace, name string) string {
	t.Helper()
	answer, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return answer.Status.Token
}

// testSecureMetrics runs the controller with the rights that docs/operations.md gives it, and sees who is let in.
func testSecureMetrics(t *testing.T, r *rig.Rig, refdaemon string) {
	c, err := kubernetes.NewForConfig(r.Config(rig.UserAdmin))
	must(t, err)
	prometheus := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "monitoring", Name: "prometheus"}}
	_, err = c.CoreV1().ServiceAccounts("monitoring").Create(t.Context(), prometheus, metav1.CreateOptions{})
	must(t, err)

	config, err := clientcmd.LoadFromFile(r.Kubeconfig(rig.UserAdmin))
	must(t, err)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &api.AuthInfo{Token: tokenOf(t, c, "virtloom-system", "virtloom-controller")}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, file))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())

	ctx, end := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, refdaemon, "controller", "--kubeconfig", file, "--leader-elect=false", "--metrics-address", address, "--metrics-secure")
	must(t, cmd.Start())
	defer func() {
		end()
		_ = cmd.Wait() // it is killed
	}()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it has made its certificate itself
	get := func(bearer string) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", http.NoBody)
		must(t, err)
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	for _, who := range []struct {
		name, token string
		want        int
	}{
		{"one with the right", tokenOf(t, c, "monitoring", "prometheus"), http.StatusOK},
		{"one without", tokenOf(t, c, "virtloom-node", "virtloom-node"), http.StatusForbidden},
		{"somebody", "", http.StatusUnauthorized},
	} {
		last := ""
		err := rigtest.Poll(t.Context(), 2*time.Minute, func(context.Context) (bool, error) {
			status, err := get(who.token)
			last = fmt.Sprintf("%d, %v", status, err)
			return err == nil && status == who.want, nil
		})
		if err != nil {
			t.Errorf("%s is answered %s, want %d", who.name, last, who.want)
		}
	}
}
