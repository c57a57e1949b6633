// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// asking is a daemon that is asked how it is.
type asking struct {
	*scene
	metrics, health, profiles, file string
	token                           string
}

// get asks at an address, and returns the status, 0 for no answer, and the answer.
func (a *asking) get(ctx context.Context, url, token string) (int, string) {
	c := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, //nolint:gosec // it vouches for itself
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// await waits until an address answers with a status and a text.
func (a *asking) await(t *testing.T, url, token string, status int, says string) {
	t.Helper()
	var got int
	var text string
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		got, text = a.get(ctx, url, token)
		return got == status && strings.Contains(text, says), nil
	})
	if err != nil {
		t.Fatalf("%s: %v; status %d, want %d and %q in\n%s", url, err, got, status, says, text)
	}
}

// write replaces the file at once.
func (a *asking) write(t *testing.T, migrations string) {
	t.Helper()
	content := "apiVersion: " + configfile.APIVersion + "\nkind: " + configfile.KindController +
		"\nmetrics: {address: " + a.metrics + ", secure: true}\nhealth: {address: " + a.health + "}\nprofiling: {address: " + a.profiles + "}\n" +
		"leaderElection: {namespace: virtloom-system}\nmigrations: " + migrations + "\n"
	if err := os.WriteFile(a.file+".next", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a.file+".next", a.file); err != nil {
		t.Fatal(err)
	}
}

// free is an address of loopback that no program serves at.
func free(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// newAsking starts a controller with the rights it is to have.
func newAsking(t *testing.T) *asking {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	a := &asking{
		scene:   &scene{Rig: rigtest.Start(t, rig.Options{})},
		metrics: free(t), health: free(t), profiles: free(t), file: filepath.Join(t.TempDir(), "controller.yaml"),
	}
	if a.Client, err = client.New(a.Config(rig.UserAdmin), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "watcher"}}
	a.create(t, account)
	request := &authenticationv1.TokenRequest{}
	if err := a.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	a.token = request.Status.Token
	a.write(t, "{inboundPerNode: 3}")
	if _, err := a.Run("refdaemon-controller", exec.Command(build(t), "controller", "--kubeconfig", a.Kubeconfig(rig.UserController), "--config", a.file)); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestController_Probes(t *testing.T) {
	a := newAsking(t)
	a.await(t, "http://"+a.health+"/readyz?verbose", "", http.StatusOK, "[+]lease ok")
	a.await(t, "http://"+a.health+"/readyz?verbose", "", http.StatusOK, "[+]caches ok")
	a.await(t, "http://"+a.health+"/healthz?verbose", "", http.StatusOK, "[+]workers ok")
	a.await(t, "http://"+a.profiles+"/debug/pprof/cmdline", "", http.StatusOK, "controller")

	metrics := "https://" + a.metrics + "/metrics"
	a.await(t, metrics, "", http.StatusUnauthorized, "")
	a.await(t, metrics, "nonsense", http.StatusInternalServerError, "Authentication failed") // as controller-runtime has it
	a.await(t, metrics, a.token, http.StatusForbidden, "")
	sees := "https://" + a.metrics + cachestate.Path + "?kind=vmi&namespace=default&name=none"
	a.await(t, sees, a.token, http.StatusForbidden, "")
	a.create(t, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics", cachestate.Path}, Verbs: []string{"get"}}},
	})
	a.create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metrics"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "watcher"}},
	})
	a.await(t, metrics, a.token, http.StatusOK, "\nvirtloom_config_last_reload_successful 1\n")

	a.await(t, sees, a.token, http.StatusOK, `"leads":true,"settings":{`)
	a.testExplained(t)

	a.write(t, "{inboundPerNode: 0}")
	a.await(t, metrics, a.token, http.StatusOK, "\nvirtloom_config_last_reload_successful 0\n")
	a.write(t, "{inboundPerNode: 5, evacuate: false}")
	a.await(t, metrics, a.token, http.StatusOK, "\nvirtloom_config_restart_required 1\n")
	a.await(t, metrics, a.token, http.StatusOK, "\nvirtloom_config_last_reload_successful 1\n")
	a.await(t, "http://"+a.health+"/readyz", "", http.StatusOK, "ok")
}

// testExplained has "refdaemon explain" ask the controller, which vouches for itself.
func (a *asking) testExplained(t *testing.T) {
	t.Helper()
	a.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(a.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"explain", "node", "node-a", "--kubeconfig", a.Kubeconfig(rig.UserAdmin), "--controller", "https://" + a.metrics, "--controller-token-file", token,
	}
	for says, more := range map[string][]string{
		"leads; its cache is up to date": {"--controller-insecure-skip-tls-verify"},
		"failed to verify certificate":   nil,
	} {
		var out bytes.Buffer
		err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			out.Reset()
			err := run(ctx, append(slices.Clone(args), more...), &out)
			return strings.Contains(out.String(), says), err
		})
		if err != nil {
			t.Errorf("explain %v: %v, want %q in\n%s", more, err, says, out.String())
		}
	}
}
