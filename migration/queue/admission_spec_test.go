// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"testing"
)

func TestS14Queueing(t *testing.T) {
	fill := func(cluster int) *Admission {
		a := newAdmission(cluster, 9, 9)
		for i := range 5 {
			a.Ask(acting(fmt.Sprint("running", i), fmt.Sprint("n", i), "t"), start)
		}
		return a
	}
	t.Run("S14/64 a critical one that has to wait stays critical", func(t *testing.T) {
		a := fill(5)
		c := claim("critical", "S")
		c.Priority = PriorityCritical
		v, _ := a.Ask(c, start)
		if q := a.queued(start); v.Held || len(q) != 1 || q[0].Priority != PriorityCritical {
			t.Errorf("verdict %+v, queue %+v", v, q)
		}
	})
	t.Run("S14/65 who runs goes before who is critical, then user, maintenance, unset", func(t *testing.T) {
		a := fill(5)
		for p, name := range map[int]string{PriorityUnset: "unset", PriorityMaintenance: "maintenance", PriorityUser: "user", PriorityCritical: "critical"} {
			c := claim(name, "S")
			c.Priority = p
			a.Ask(c, start)
		}
		if v, _ := a.Ask(acting("sixth", "S", "t"), start); !v.Held || !v.Inbound {
			t.Errorf("one that acts has to wait: %+v", v)
		}
		a.Release(key("a", "sixth"), start)
		var got []string
		for i := range 4 {
			for _, k := range a.Release(key("a", fmt.Sprint("running", i)), start) {
				got = append(got, k.Name)
			}
		}
		if want := []string{"critical", "user", "maintenance", "unset"}; !slices.Equal(got, want) {
			t.Errorf("started are %v, want %v", got, want)
		}
	})
	t.Run("S14/67 a raised limit is in force at once", func(t *testing.T) {
		a := fill(5)
		for i := range 7 {
			a.Ask(claim(fmt.Sprint("waits", i), fmt.Sprint("m", i)), start)
		}
		woken := a.SetLimits(Limits{Cluster: 10, Outbound: 9, Inbound: 9}, start)
		if u := a.Usage(); u.Cluster != 10 || len(woken) != 7 {
			t.Errorf("usage %+v, woken %v; want ten slots in use, and the two that wait woken for the limit", u, woken)
		}
		if woken := a.SetLimits(Limits{Outbound: 9, Inbound: 9}, start); len(woken) != 2 || a.Usage().Cluster != 10 {
			t.Errorf("lowering the limit woke %v, usage %+v", woken, a.Usage())
		}
	})
}
