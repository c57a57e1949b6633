// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/internal/rig"
)

// asked is a request of the controller.
func asked(verb, resource, name string, code int, at time.Time) rig.Request {
	q := rig.Request{Verb: verb, Received: at}
	q.User.Username, q.ObjectRef.Resource, q.ObjectRef.Name, q.ResponseStatus.Code = rig.UserController, resource, name, code
	return q
}

func many(n int, q rig.Request, every time.Duration) []rig.Request {
	var out []rig.Request
	for i := range n {
		q.Received = q.Received.Add(time.Duration(min(i, 1)) * every)
		out = append(out, q)
	}
	return out
}

func TestAuditLog_Judged(t *testing.T) {
	begun := time.Now()
	other := asked("patch", "virtualmachineinstances", "g", http.StatusForbidden, begun)
	other.User.Username = "somebody"
	for name, tt := range map[string]struct {
		requests []rig.Request
		ops      int
		want     string
	}{
		"a few writes": {many(30, asked("patch", "virtualmachineinstances", "g", http.StatusOK, begun), time.Second), 3, ""},
		"too many of one object": {
			many(realStormWrites+1, asked("patch", "virtualmachineinstances", "g", http.StatusOK, begun), 100*time.Millisecond), 10_000,
			"writes of virtualmachineinstances g within"},
		"as many over an hour": {many(realStormWrites+1, asked("patch", "virtualmachineinstances", "g", http.StatusOK, begun), time.Minute), 10_000, ""},
		"refused ones count":   {many(realStormWrites+1, asked("patch", "pods", "p", http.StatusConflict, begun), 0), 10_000, "writes of pods p within"},
		"too many events about one object": {
			append(many(realStormEvents, asked("create", "events", "g.17a1", http.StatusCreated, begun), 0), asked("patch", "events", "g.17a2", http.StatusOK, begun)), 10_000,
			"writes of events about g within"},
		"too many for an operation": {many(61, asked("patch", "pods", "p", http.StatusOK, begun), time.Minute), 1, "61.0 writes for each of 1 operations"},
		"too many events for an operation": {
			many(61, asked("create", "events", "g.17a1", http.StatusCreated, begun), time.Minute), 2, "30.5 events for each of 2 operations"},
		"something forbidden, before the beginning": {
			[]rig.Request{asked("list", "secrets", "", http.StatusForbidden, begun.Add(-time.Hour))}, 1, "forbidden: " + rig.UserController + " list secrets, 1 times"},
		"what others do":              {[]rig.Request{other}, 1, ""},
		"writes before the beginning": {many(61, asked("patch", "pods", "p", http.StatusOK, begun.Add(-time.Hour)), 0), 1, ""},
		"reads":                       {many(realStormWrites+1, asked("get", "pods", "p", http.StatusOK, begun), 0), 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := auditOf(tt.requests, begun, func(user string) bool { return user == rig.UserController })
			if got := strings.Join(a.wrong(tt.ops), "; "); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("found %q, want it to name %q", got, tt.want)
			}
		})
	}
}

// TestSlope_LastProcess: a controller that was killed says nothing about the next.
func TestSlope_LastProcess(t *testing.T) {
	var samples []Sample
	for i, life := range []float64{1, 1, 2, 2, 2} {
		samples = append(samples, Sample{Operations: i, Values: map[string]float64{valueLife: life}})
	}
	if last := lastLife(samples); len(last) != 3 || last[0].Operations != 2 {
		t.Errorf("the last life is %+v", last)
	}
	if last := lastLife(nil); len(last) != 0 {
		t.Errorf("no life is %+v", last)
	}
}
