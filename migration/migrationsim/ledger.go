// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// ledger counts acting migrations by the state of the cluster, independently of Admission.
type ledger struct {
	passes, unfinished int
	// pods counts the migrations with a target Pod, moving those that were handed off,
	// leaving and entering the same by node.
	pods, moving      int
	leaving, entering map[string]int
	paths             map[*simulatedGuest]path
	// fresh says that a count has risen since the last check.
	fresh    bool
	peak     Peak
	pingPong []PingPong
}

// path is a VMI's source and target node.
type path struct{ from, to string }

func newLedger() ledger {
	return ledger{leaving: map[string]int{}, entering: map[string]int{}, paths: map[*simulatedGuest]path{}}
}

// hold counts a migration that has got a target Pod, or has ended.
func (l *ledger) hold(n int) {
	l.pods += n
	l.fresh = l.fresh || n > 0
	l.peak.Pods = max(l.peak.Pods, l.pods)
}

// moved updates the counts of handed-off VMIs, by their nodes.
func (l *ledger) moved(g *simulatedGuest) {
	var is path
	if ms := g.VMI.Status.MigrationState; ms != nil && !ms.Completed && ms.TargetNode != "" {
		is = path{ms.SourceNode, ms.TargetNode}
	}
	was := l.paths[g]
	if was == is {
		return
	}
	if was != (path{}) {
		l.moving--
		l.leaving[was.from]--
		l.entering[was.to]--
		delete(l.paths, g)
	}
	if is != (path{}) {
		l.moving++
		l.leaving[is.from]++
		l.entering[is.to]++
		l.paths[g] = is
		l.fresh = true
		l.peak.Cluster = max(l.peak.Cluster, l.moving)
		l.peak.Outbound = max(l.peak.Outbound, l.leaving[is.from])
		l.peak.Inbound = max(l.peak.Inbound, l.entering[is.to])
	}
}

func (l *ledger) ended() { l.unfinished-- }

// began records that the memory of the VMI's migration is being transferred.
func (l *ledger) began(g *simulatedGuest, now time.Time) {
	if j := g.moving(); j != nil {
		j.record.Begun = now
	}
}

// moving returns the migration that migrates the VMI.
func (g *simulatedGuest) moving() *job {
	ms := g.VMI.Status.MigrationState
	for _, j := range g.jobs {
		if ms != nil && j.m.UID == ms.MigrationUID {
			return j
		}
	}
	return nil
}

// arrived records that the VMI is on another node, and whether it was there recently.
func (l *ledger) arrived(s *Sim, g *simulatedGuest, from, to string) {
	delete(s.byName[from].guests, g)
	s.byName[to].guests[g] = true
	if j := g.moving(); j == nil || !automatic(j.m) {
		return
	}
	if at, left := g.left[to]; left && s.clock.now.Sub(at) < s.o.PingPong {
		l.pingPong = append(l.pingPong, PingPong{Namespace: g.key.Namespace, Guest: g.key.Name, Node: to, Left: at, Back: s.clock.now})
	}
	g.left[from] = s.clock.now
}

// check compares with the limits whenever a count has risen: both the state of the cluster and
// the slots that Admission has handed out.
func (l *ledger) check(s *Sim) {
	if !l.fresh || s.lifted {
		return
	}
	l.fresh = false
	limits, used := s.o.Config.Limits, s.admission.Usage()
	for _, c := range []struct {
		what     string
		have, of int
	}{
		{"migrations are running in the cluster", l.peak.Cluster, limits.Cluster},
		{"migrations are leaving one node", l.peak.Outbound, limits.Outbound},
		{"migrations are entering one node", l.peak.Inbound, limits.Inbound},
		{"slots of the cluster are held", used.Cluster, limits.Cluster},
		{"migrations have lent their slots", used.Lent, max(limits.Lent, 0)},
		{"migrations have target Pods", l.pods, used.Cluster + used.Lent},
	} {
		if c.have > c.of {
			s.fail(fmt.Errorf("%d %s, limit is %d", c.have, c.what, c.of))
		}
	}
	for node, n := range used.Outbound {
		if n > limits.Outbound {
			s.fail(fmt.Errorf("%d slots for leaving node %s are held, limit is %d", n, node, limits.Outbound))
		}
	}
}

// automatic reports whether a controller, not a user, created the migration.
func automatic(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Annotations[v1.EvacuationMigrationAnnotation] != ""
}
