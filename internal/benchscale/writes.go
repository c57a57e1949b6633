// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/virtloom/virtloom/internal/rig"
)

// Writes is what a user wrote to the API server for each of n objects, by the audit log.
type Writes struct {
	// Each is all writes but of events for each object, Events those of events; both count what was
	// refused.
	Each   float64 `json:"each"`
	Events float64 `json:"eventsEach"`
	// Rejected is what was refused as a conflict (409), as a failed test of a patch (422) or as too many
	// requests (429), for each object.
	Rejected float64 `json:"rejectedEach"`
	// Kinds is the number for each object by verb and resource: "create pods", "patch pods/status".
	Kinds map[string]float64 `json:"kindsEach"`
	// Codes counts the answers that refused a write.
	Codes map[string]int `json:"refusals"`
	// Reads is how many things other than watches were read, in all.
	Reads int `json:"reads"`
}

// window picks requests of a user that were received from the first time on and before the second,
// which may be zero for no end.
type window struct {
	user     string
	from, to time.Time
}

func (w window) has(q *rig.Request) bool {
	return q.User.Username == w.user && !q.Received.Before(w.from) && (w.to.IsZero() || q.Received.Before(w.to))
}

// rejected reports whether a write failed due to a concurrent change.
func rejected(q *rig.Request) bool {
	switch q.ResponseStatus.Code {
	case http.StatusConflict, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
		return true
	}
	return false
}

// writesOf counts what is in the window, for each of n objects. What is created twice is refused
// as a conflict too.
func writesOf(requests []rig.Request, w window, n int) Writes {
	out := Writes{Kinds: map[string]float64{}, Codes: map[string]int{}}
	each := 1 / float64(max(n, 1))
	for i := range requests {
		q := &requests[i]
		switch {
		case !w.has(q):
			continue
		case q.ReadOnly():
			out.Reads++
			continue
		case q.ObjectRef.Resource == "events":
			out.Events += each
		default:
			out.Each += each
		}
		out.Kinds[q.What()] += each
		if !q.Accepted() {
			out.Codes[strconv.Itoa(q.ResponseStatus.Code)]++
		}
		if rejected(q) {
			out.Rejected += each
		}
	}
	out.Each, out.Events, out.Rejected = round3(out.Each), round3(out.Events), round3(out.Rejected)
	for what, number := range out.Kinds {
		out.Kinds[what] = round3(number)
	}
	return out
}

// countOf is how many requests are in the window.
func countOf(requests []rig.Request, w window) (n int) {
	for i := range requests {
		if w.has(&requests[i]) {
			n++
		}
	}
	return n
}

// kindsText lists the kinds of writes, the most frequent first.
func (w Writes) kindsText() string {
	names := make([]string, 0, len(w.Kinds))
	for name := range w.Kinds {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		switch {
		case w.Kinds[a] > w.Kinds[b]:
			return -1
		case w.Kinds[a] < w.Kinds[b]:
			return 1
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = name + " " + strconv.FormatFloat(w.Kinds[name], 'f', 2, 64)
	}
	return strings.Join(parts, ", ")
}
