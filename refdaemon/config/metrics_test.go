// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/refdaemon/cachestate"
)

// asks is a client to whom daemons vouch for themselves.
var asks = &http.Client{Transport: &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, //nolint:gosec // they made their certificates
}}

// question is what a daemon is asked, with a token or without.
type question struct{ url, token string }

// ask returns the answer and its status.
func (q *question) ask(ctx context.Context) (text string, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url, nil)
	if err != nil {
		return "", 0, err
	}
	if q.token != "" {
		request.Header.Set("Authorization", "Bearer "+q.token)
	}
	answer, err := asks.Do(request)
	if err != nil {
		return "", 0, err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	return string(all), answer.StatusCode, err
}

// want is an error unless the answer has that status, and says what it is to say.
func (q *question) want(ctx context.Context, status int, says ...string) error {
	text, got, err := q.ask(ctx)
	if err != nil {
		return err
	}
	for _, what := range says {
		if !strings.Contains(text, what) {
			return fmt.Errorf("%s: status %d, and no %q in\n%s", q.url, got, what, text)
		}
	}
	if got != status {
		return fmt.Errorf("%s: status %d, want %d\n%s", q.url, got, status, text)
	}
	return nil
}

// account makes a service account with a role of the cluster, and returns its token; without a role, one that has none.
func (w *world) account(t *testing.T, name, role string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: named(name)}
	must(t, w.Create(t.Context(), account))
	if role != "" {
		must(t, w.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
		}))
	}
	request := &authenticationv1.TokenRequest{}
	must(t, w.SubResource("token").Create(t.Context(), account, request))
	return request.Status.Token
}

// testMetrics has strangers ask daemons, of which the controller is the first, for their metrics, and a client that may see them.
func (w *world) testMetrics(t *testing.T, daemons []*daemon) {
	stranger := w.account(t, "stranger", "")
	for i, d := range daemons {
		answers := func(name string, q *question, status int, says ...string) {
			t.Helper()
			w.await(t, name+" to be answered by "+d.pod, func(ctx context.Context) error { return q.want(ctx, status, says...) })
		}
		answers("nobody", &question{d.metrics, ""}, http.StatusUnauthorized)
		answers("a stranger", &question{d.metrics, stranger}, http.StatusForbidden)
		answers("one who may", &question{d.metrics, w.scraper}, http.StatusOK, "virtloom_", "go_goroutines")
		if i == 0 { // the controller; reading metrics does not include its view
			answers("one who may see metrics", &question{strings.TrimSuffix(d.metrics, "/metrics") + cachestate.Path, w.scraper}, http.StatusForbidden)
		}
	}
}
