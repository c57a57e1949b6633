// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"container/heap"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// happening is a scheduled event. Events of the same time happen in the order in which they
// were scheduled.
type happening struct {
	at  time.Time
	seq uint64
	do  func()
}

// agenda is a heap of scheduled events.
type agenda []happening

// Len implements heap.Interface.
func (a agenda) Len() int { return len(a) }

// Less implements heap.Interface.
func (a agenda) Less(i, j int) bool {
	if !a[i].at.Equal(a[j].at) {
		return a[i].at.Before(a[j].at)
	}
	return a[i].seq < a[j].seq
}

// Swap implements heap.Interface.
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push implements heap.Interface.
func (a *agenda) Push(x any) { *a = append(*a, x.(happening)) }

// Pop implements heap.Interface.
func (a *agenda) Pop() any {
	last := len(*a) - 1
	h := (*a)[last]
	(*a)[last] = happening{}
	*a = (*a)[:last]
	return h
}

// clock is the virtual time and its scheduled events.
type clock struct {
	now    time.Time
	seq    uint64
	agenda agenda
}

// at schedules an event; one in the past happens now.
func (c *clock) at(t time.Time, do func()) {
	if t.Before(c.now) {
		t = c.now
	}
	c.seq++
	heap.Push(&c.agenda, happening{at: t, seq: c.seq, do: do})
}

// step runs the next event, and reports false when there is none until then.
func (c *clock) step(until time.Time) bool {
	if len(c.agenda) == 0 || c.agenda[0].at.After(until) {
		return false
	}
	h, _ := heap.Pop(&c.agenda).(happening)
	c.now = h.at
	h.do()
	return true
}

// stamp returns the time as the API stores it.
func (c *clock) stamp() metav1.Time { return metav1.NewTime(c.now).Rfc3339Copy() }

// after schedules an event for when a component with this latency has done its work.
func (s *Sim) after(latency time.Duration, do func()) {
	d := latency
	if s.o.Latency.Jitter > 0 && d > 0 {
		d += time.Duration(s.random.Float64() * s.o.Latency.Jitter * float64(d))
	}
	s.clock.at(s.clock.now.Add(d), do)
}
