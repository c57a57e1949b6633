// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/virtloom/virtloom/internal/rig"
)

// Bounds of what the daemons write in the real soak, for each operation and, where an operation comes every second, of
// one object within stormWithin.
const (
	realStormWrites = 150
	realStormEvents = 75

	realWrites = 60
	realEvents = 30
)

// audit is the summary of the daemons' requests in the audit log.
type audit struct {
	writes, events *Storms
	byKind         map[string]int
	forbidden      map[string]int
	refused        int
}

// auditOf reads what users did for whom ours is true, from then on.
func auditOf(requests []rig.Request, from time.Time, ours func(user string) bool) audit {
	a := audit{
		writes: NewStorms(stormWithin, realStormWrites), events: NewStorms(stormWithin, realStormEvents),
		byKind: map[string]int{}, forbidden: map[string]int{},
	}
	requests = slices.Clone(requests)
	slices.SortStableFunc(requests, func(x, y rig.Request) int { return x.Received.Compare(y.Received) })
	for i := range requests {
		q := &requests[i]
		if !ours(q.User.Username) {
			continue
		}
		if q.ResponseStatus.Code == http.StatusForbidden || q.ResponseStatus.Code == http.StatusUnauthorized {
			a.forbidden[q.User.Username+" "+q.What()]++
		}
		if q.Received.Before(from) || q.ReadOnly() {
			continue
		}
		a.byKind[q.What()]++
		if q.ResponseStatus.Code >= http.StatusBadRequest {
			a.refused++
		}
		if q.ObjectRef.Resource != "events" {
			a.writes.Wrote(q.ObjectRef.Resource+" "+q.ObjectRef.Name, q.Received)
			continue
		}
		// An event is called after what it is about.
		about := q.ObjectRef.Name
		if dot := strings.LastIndexByte(about, '.'); dot >= 0 {
			about = about[:dot]
		}
		a.events.Wrote("events about "+about, q.Received)
	}
	return a
}

// wrong says what is wrong with what was written for so many operations.
func (a audit) wrong(ops int) []string {
	wrong := slices.Concat(a.writes.Wrong(), a.events.Wrong())
	for what, n := range a.forbidden {
		wrong = append(wrong, fmt.Sprintf("forbidden: %s, %d times", what, n))
	}
	each := func(name string, n int, most float64) {
		if ops > 0 && float64(n)/float64(ops) > most {
			wrong = append(wrong, fmt.Sprintf("storm: %.1f %s for each of %d operations, at most %g are right", float64(n)/float64(ops), name, ops, most))
		}
	}
	each("writes", a.writes.Total(), realWrites)
	each("events", a.events.Total(), realEvents)
	slices.Sort(wrong)
	return wrong
}

// judge completes the report.
func (r *Real) judge(out *Report) error {
	requests, err := r.rig.Requests()
	if err != nil {
		return err
	}
	nodes := map[string]bool{rig.UserController: true}
	for _, n := range r.nodes {
		nodes[rig.NodeUser(n.name)] = true
	}
	a := auditOf(requests, r.begun, func(user string) bool { return nodes[user] })
	out.Operations, out.Done, out.Faults, out.Writes, out.Refused = r.ops, r.user.Counts, r.faulted, a.byKind, a.refused
	n, whose := a.writes.Worst()
	out.WorstObject = fmt.Sprintf("%d of %s", n, whose)
	n, whose = a.events.Worst()
	out.WorstEvents = fmt.Sprintf("%d %s", n, whose)
	last := lastLife(out.Samples)
	for _, b := range RealBounds {
		if g, enough := GrowthOf(last, b); enough {
			out.Growth = append(out.Growth, g)
		}
	}
	out.Wrong = slices.Concat(Judge(last, RealBounds), a.wrong(r.ops))
	return nil
}
