// SPDX-License-Identifier: Apache-2.0

package cachestate_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var guest = cachestate.Question{Kind: cachestate.VMI, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "guest"}}

var settings = map[string]string{"launcher-image": "example.test/launcher:1"}

// controller serves what it sees, to who has the token.
func controller(t *testing.T, elected chan struct{}) *httptest.Server {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	meta := func(namespace, name, version string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: version, UID: types.UID("uid-" + name)}
	}
	pod := &corev1.Pod{ObjectMeta: meta("ns", "pod", "8")}
	pod.Labels = map[string]string{v1.CreatedByLabel: "uid-guest"}
	objects := []client.Object{
		&v1.VirtualMachineInstance{ObjectMeta: meta("ns", "guest", "7")}, pod, &corev1.Pod{ObjectMeta: meta("ns", "other", "9")},
		&v1.VirtualMachineInstanceMigration{ObjectMeta: meta("ns", "move", "5")}, &corev1.Node{ObjectMeta: meta("", "node", "3")}, &v1.VirtualMachine{ObjectMeta: meta("ns", "machine", "6")},
	}
	h := &cachestate.Handler{
		Cache: fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).Build(), Elected: elected, Clock: clocktesting.NewFakePassiveClock(at),
		Settings: func() map[string]string { return settings },
		Pending: map[cachestate.Kind]func(types.NamespacedName) []expectations.Pending{
			cachestate.VMI: func(key types.NamespacedName) []expectations.Pending {
				if key.Name != "guest" {
					return nil
				}
				ref := expectations.Ref{Kind: schema.GroupKind{Kind: "Pod"}, Namespace: "ns", Name: "pod"}
				return []expectations.Pending{{Ref: ref, Verb: expectations.Create, Since: at, Needs: "9", Problem: expectations.Overdue}}
			},
		},
	}
	mux := http.NewServeMux()
	mux.Handle(cachestate.Path, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer token" {
			http.Error(w, "who is it?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, req)
	}))
	mux.HandleFunc("/odd"+cachestate.Path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func TestHandler_Answers(t *testing.T) {
	elected := make(chan struct{})
	close(elected)
	s := controller(t, elected)
	for name, tt := range map[string]struct {
		q    cachestate.Question
		path string
		want cachestate.State
	}{
		"a guest and its Pods": {guest, "", cachestate.State{At: at, Leads: true, Settings: settings, Pending: []cachestate.Write{{Text: "create of Pod ns/pod, needs 9, overdue", Since: at, Problem: "overdue"}}, Objects: []cachestate.Object{
			{Kind: "VirtualMachineInstance", Name: "ns/guest", ResourceVersion: "7"}, {Kind: "Pod", Name: "ns/pod", ResourceVersion: "8"}}}},
		"a VM": {cachestate.Question{Kind: cachestate.Machine, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "machine"}}, "/metrics",
			cachestate.State{At: at, Leads: true, Settings: settings, Objects: []cachestate.Object{{Kind: "VirtualMachine", Name: "ns/machine", ResourceVersion: "6"}}}},
		"a migration": {cachestate.Question{Kind: cachestate.Migration, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "move"}}, "/metrics",
			cachestate.State{At: at, Leads: true, Settings: settings, Objects: []cachestate.Object{{Kind: "VirtualMachineInstanceMigration", Name: "ns/move", ResourceVersion: "5"}}}},
		"a node": {cachestate.Question{Kind: cachestate.Node, NamespacedName: types.NamespacedName{Name: "node"}}, "/",
			cachestate.State{At: at, Leads: true, Settings: settings, Objects: []cachestate.Object{{Kind: "Node", Name: "node", ResourceVersion: "3"}}}},
		"what is not there": {cachestate.Question{Kind: cachestate.Node, NamespacedName: types.NamespacedName{Name: "none"}}, "", cachestate.State{At: at, Leads: true, Settings: settings}},
	} {
		c := cachestate.Client{HTTP: s.Client(), URL: s.URL + tt.path, Token: "token"}
		got, err := c.Ask(t.Context(), tt.q)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(&tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	other := controller(t, make(chan struct{}))
	if got, err := (&cachestate.Client{HTTP: other.Client(), URL: other.URL, Token: "token"}).Ask(t.Context(), guest); err != nil || got.Leads {
		t.Errorf("one that does not lead says %+v, error %v", got, err)
	}
}

func TestHandler_InvalidRequests(t *testing.T) {
	s := controller(t, nil)
	ask := func(kind cachestate.Kind, namespace, name string) cachestate.Question {
		return cachestate.Question{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
	}
	for name, tt := range map[string]struct {
		url, token string
		q          cachestate.Question
		says       string
	}{
		"no URL":             {"localhost:8080", "token", guest, "not the URL of a controller"},
		"another scheme":     {"file:///etc", "token", guest, "not the URL of a controller"},
		"not a URL":          {"http://[", "token", guest, "not the URL of a controller"},
		"nobody there":       {"http://127.0.0.1:1", "token", guest, "refused"},
		"no rights":          {s.URL, "", guest, "401 Unauthorized: who is it?"},
		"another path":       {s.URL + "/x", "token", guest, "404"},
		"no controller":      {s.URL + "/odd", "token", guest, "returned an invalid answer"},
		"an unknown kind":    {s.URL, "token", ask("pod", "ns", "p"), `unknown kind "pod"; use one of vm, vmi`},
		"no name":            {s.URL, "token", ask(cachestate.VMI, "ns", ""), "name is required"},
		"no namespace":       {s.URL, "token", ask(cachestate.VMI, "", "guest"), "a namespace is required"},
		"a node's namespace": {s.URL, "token", ask(cachestate.Node, "ns", "node"), "forbidden for nodes"},
	} {
		c := cachestate.Client{HTTP: s.Client(), URL: tt.url, Token: tt.token}
		if _, err := c.Ask(t.Context(), tt.q); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want %q", name, err, tt.says)
		}
	}
	w := httptest.NewRecorder()
	(&cachestate.Handler{}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, cachestate.Path, http.NoBody))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered with %d", w.Code)
	}
}

func TestVersions_ReadError(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
	for _, k := range []cachestate.Kind{cachestate.VMI, cachestate.Migration} {
		if _, err := cachestate.Versions(t.Context(), c, cachestate.Question{Kind: k, NamespacedName: guest.NamespacedName}); err == nil {
			t.Errorf("%s: there is no such kind in the scheme", k)
		}
	}
}
