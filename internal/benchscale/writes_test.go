// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/internal/rig"
)

const us, them = "controller", "somebody"

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// request is one of the user after so many seconds, answered with the code.
func request(user, verb, resource string, after, code int) rig.Request {
	q := rig.Request{Verb: verb, Received: noon.Add(time.Duration(after) * time.Second)}
	q.User.Username, q.ObjectRef.Resource, q.ResponseStatus.Code = user, resource, code
	return q
}

func TestWrites(t *testing.T) {
	status := request(us, "patch", "pods", 1, 200)
	status.ObjectRef.Subresource = "status"
	for name, test := range map[string]struct {
		requests []rig.Request
		n        int
		to       int
		want     Writes
		text     string
	}{
		"nothing": {n: 1, want: Writes{}},
		"writes are counted for each, events apart, reads by themselves": {
			requests: []rig.Request{
				request(us, "create", "pods", 0, 201), request(us, "create", "pods", 1, 201), status, status, status, status,
				request(us, "create", "events", 1, 201), request(us, "list", "pods", 1, 200), request(us, "get", "nodes", 1, 404),
			},
			n: 2, want: Writes{Each: 3, Events: .5, Reads: 2, Kinds: map[string]float64{"create pods": 1, "patch pods/status": 2, "create events": .5}},
			text: "patch pods/status 2.00, create pods 1.00, create events 0.50",
		},
		"of others, before and after does not count": {
			requests: []rig.Request{
				request(them, "create", "pods", 1, 201), request(us, "create", "pods", -1, 201), request(us, "create", "pods", 5, 201),
				request(us, "create", "pods", 4, 201),
			},
			n: 1, to: 5, want: Writes{Each: 1, Kinds: map[string]float64{"create pods": 1}}, text: "create pods 1.00",
		},
		"what was refused was written all the same; not all of it to others": {
			requests: []rig.Request{
				request(us, "patch", "pods", 1, 409), request(us, "patch", "pods", 1, 422), request(us, "patch", "pods", 1, 429),
				request(us, "patch", "pods", 1, 404), request(us, "patch", "pods", 1, 200), request(us, "patch", "events", 1, 409),
			},
			n: 10, want: Writes{
				Each: .5, Events: .1, Rejected: .4, Kinds: map[string]float64{"patch pods": .5, "patch events": .1},
				Codes: map[string]int{"409": 2, "422": 1, "429": 1, "404": 1},
			},
			text: "patch pods 0.50, patch events 0.10",
		},
		"of no object there is no infinity": {
			requests: []rig.Request{request(us, "create", "pods", 1, 201)}, want: Writes{Each: 1, Kinds: map[string]float64{"create pods": 1}},
			text: "create pods 1.00",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := window{user: us, from: noon}
			if test.to > 0 {
				w.to = noon.Add(time.Duration(test.to) * time.Second)
			}
			got := writesOf(test.requests, w, test.n)
			for _, m := range []*Writes{&test.want} {
				if m.Kinds == nil {
					m.Kinds = map[string]float64{}
				}
				if m.Codes == nil {
					m.Codes = map[string]int{}
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if text := got.kindsText(); text != test.text {
				t.Errorf("text %q, want %q", text, test.text)
			}
		})
	}
}

func TestComponentsOf(t *testing.T) {
	in := func(q rig.Request, namespace string) rig.Request {
		q.ObjectRef.Namespace = namespace
		return q
	}
	got := componentsOf([]rig.Request{
		in(request(us, "create", "pods", 1, 201), "here"), in(request(us, "patch", "pods", 1, 409), "here"), in(request(them, "create", "pods", 1, 201), "here"),
		in(request(us, "create", "events", 1, 201), "here"), in(request(us, "list", "pods", 1, 200), "here"), in(request(them, "update", "leases", 1, 200), "there"),
		in(request(them, "create", "pods", -1, 201), "here"),
	}, window{namespace: "here", from: noon}, 2)
	if diff := cmp.Diff(map[string]float64{us: 1, them: .5, everybody: 1.5}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
