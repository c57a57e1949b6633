// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
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

// window picks requests of a user, or of all if it is empty, that were received from the first time on and before the second,
// which may be zero for no end.
type window struct {
	user     string
	from, to time.Time
	// namespace is that of the objects; empty for any.
	namespace string
}

func (w window) has(q *rig.Request) bool {
	if w.user != "" && q.User.Username != w.user || w.namespace != "" && q.ObjectRef.Namespace != w.namespace {
		return false
	}
	return !q.Received.Before(w.from) && (w.to.IsZero() || q.Received.Before(w.to))
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

// componentsOf is what each user wrote but events for each of n objects, and all together.
func componentsOf(requests []rig.Request, w window, n int) map[string]float64 {
	out := map[string]float64{}
	for i := range requests {
		if q := &requests[i]; w.has(q) && !q.ReadOnly() && q.ObjectRef.Resource != "events" {
			out[q.User.Username]++
			out[everybody]++
		}
	}
	for user, writes := range out {
		out[user] = round3(writes / float64(max(n, 1)))
	}
	return out
}

// everybody is all components together.
const everybody = "all"

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
func (w Writes) kindsText() string { return listed(w.Kinds) }

// listed are numbers by their names, the highest first.
func listed(numbers map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(numbers), func(a, b string) int {
		return cmp.Or(cmp.Compare(numbers[b], numbers[a]), strings.Compare(a, b))
	})
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = name + " " + strconv.FormatFloat(numbers[name], 'f', 2, 64)
	}
	return strings.Join(parts, ", ")
}
