// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWatch reads events as the API server sends them.
func TestWatch(t *testing.T) {
	const pod = `"labels":{"kubevirt.io":"virt-launcher"},"ownerReferences":[{"name":"guest"}]`
	for name, test := range map[string]struct {
		path   string
		object string
		kind   string
		want   map[stage]string
		fails  string
	}{
		"a Pod of a guest": {path: "pods", object: `{"metadata":{` + pod + `}}`, want: map[stage]string{podCreated: "guest"}},
		"one that runs":    {path: "pods", object: `{"metadata":{` + pod + `},"status":{"phase":"Running"}}`, want: map[stage]string{podCreated: "guest", podRunning: "guest"}},
		"one to move to": {
			path: "pods", want: map[stage]string{targetCreated: "uid-1", targetRunning: "uid-1"},
			object: `{"metadata":{` + strings.Replace(pod, `"}`, `","kubevirt.io/migrationJobUID":"uid-1"}`, 1) + `},"status":{"phase":"Running"}}`,
		},
		"a Pod of nobody":     {path: "pods", object: `{"metadata":{"labels":{"kubevirt.io":"virt-launcher"}}}`},
		"a Pod of others":     {path: "pods", object: `{"metadata":{"ownerReferences":[{"name":"job"}]},"status":{"phase":"Running"}}`},
		"a Pod that is gone":  {path: "pods", kind: "DELETED", object: `{"metadata":{` + pod + `}}`},
		"a guest that is new": {path: "virtualmachineinstances", object: `{"metadata":{"name":"guest"},"status":{"phase":"Pending"}}`},
		"a guest on its node": {path: "virtualmachineinstances", object: `{"metadata":{"name":"guest"},"status":{"phase":"Scheduled"}}`, want: map[stage]string{guestScheduled: "guest"}},
		"one that runs was on its node, whether seen or not": {
			path: "virtualmachineinstances", object: `{"metadata":{"name":"guest"},"status":{"phase":"Running"}}`,
			want: map[stage]string{guestScheduled: "guest", guestRunning: "guest"},
		},
		"one handed off": {
			path: "virtualmachineinstances", want: map[stage]string{handedOff: "uid-1", guestScheduled: "guest", guestRunning: "guest"},
			object: `{"metadata":{"name":"guest"},"status":{"phase":"Running","migrationState":{"migrationUid":"uid-1","targetNode":"b"}}}`,
		},
		"one that ended": {path: "virtualmachineinstances", object: `{"metadata":{"name":"g"},"status":{"phase":"Failed"}}`, fails: "guest g ended in phase Failed"},
		"a migration that waits": {
			path: "virtualmachineinstancemigrations", want: map[stage]string{moveWaiting: "uid-1"},
			object: `{"metadata":{"uid":"uid-1"},"status":{"phase":"Pending","conditions":[{"type":"migrationWaiting","reason":"WaitingForSlot"}]}}`,
		},
		"one that succeeded and is not tidied up": {
			path: "virtualmachineinstancemigrations", object: `{"metadata":{"uid":"uid-1","finalizers":["x"]},"status":{"phase":"Succeeded"}}`,
			want: map[stage]string{moveSucceeded: "uid-1"},
		},
		"one that is": {
			path: "virtualmachineinstancemigrations", object: `{"metadata":{"uid":"uid-1"},"status":{"phase":"Succeeded"}}`,
			want: map[stage]string{moveSucceeded: "uid-1", moveTidied: "uid-1"},
		},
		"one that failed":           {path: "virtualmachineinstancemigrations", object: `{"metadata":{"name":"m"},"status":{"phase":"Failed"}}`, fails: "migration m failed"},
		"the API server has enough": {path: "pods", kind: "ERROR", object: `{"message":"too old"}`, fails: "too old"},
	} {
		t.Run(name, func(t *testing.T) {
			kind := test.kind
			if kind == "" {
				kind = "MODIFIED"
			}
			r := newRecorder()
			paths := slices.DeleteFunc(slices.Collect(maps.Keys(watched)), func(p string) bool { return !strings.HasSuffix(p, "/"+test.path) })
			if len(paths) != 1 {
				t.Fatalf("watched %v", paths)
			}
			w := &watcher{note: func(s *seen) { watched[paths[0]](r, s, noon) }}
			err := w.follow(json.NewDecoder(strings.NewReader(`{"type":"` + kind + `","object":` + test.object + `}`)))
			if err == nil {
				t.Fatal("the end of the events is no error")
			}
			if r.failed != nil {
				err = r.failed
			}
			if test.fails != "" && !strings.Contains(err.Error(), test.fails) || test.fails == "" && r.failed != nil {
				t.Errorf("fails with %v, want %q", err, test.fails)
			}
			got := map[stage]string{}
			for s, objects := range r.at {
				got[s] = strings.Join(slices.Collect(maps.Keys(objects)), " ")
			}
			if test.want == nil {
				test.want = map[stage]string{}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("noted (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWatch_Resumes lets the API server end watches: what comes after is seen, once.
func TestWatch_Resumes(t *testing.T) {
	guest := func(version int) string {
		return fmt.Sprintf(`{"type":"MODIFIED","object":{"metadata":{"name":"guest-%d","resourceVersion":"%d"},"status":{"phase":"Scheduled"}}}`, version, version)
	}
	const expired = `{"type":"ERROR","object":{"message":"too old"}}`
	for name, test := range map[string]struct {
		answers map[string]string
		want    []string
		fails   string
	}{
		"it ends twice":            {map[string]string{"": guest(1) + guest(2), "2": guest(3), "3": ""}, []string{"guest-1", "guest-2", "guest-3"}, "503"},
		"it is said to be too old": {map[string]string{"": guest(1), "1": expired}, []string{"guest-1"}, "the API server ends the watch: too old"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
				answer := test.answers[q.URL.Query().Get("resourceVersion")]
				if answer == "" {
					out.WriteHeader(http.StatusServiceUnavailable)
				}
				fmt.Fprint(out, answer)
			}))
			defer server.Close()
			var got []string
			w := &watcher{client: server.Client(), url: server.URL + "/?watch=1", note: func(s *seen) { got = append(got, s.Metadata.Name) }}
			first, err := w.open(t.Context())
			if err == nil {
				err = w.run(t.Context(), first)
			}
			if err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Errorf("ends with %v, want %q", err, test.fails)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("seen (-want +got):\n%s", diff)
			}
		})
	}
}
