// SPDX-License-Identifier: Apache-2.0

package explore

import "github.com/virtloom/virtloom/expectations"

// does names what an action does.
type does uint8

const (
	// Processes.
	sees does = iota
	works
	filesFail
	listenFails
	answered
	answerLost
	requestLost
	requestLate
	timesOut
	calls
	crashes
	restarts
	restartsOld
	relists
	relistsOld
	leads
	stepsDown
	// Requests that come late.
	lands
	fades
	// Hypervisors.
	callEnds
	callFades
	movesOn
	moveFails
	moveBreaks
	dialFails
	cleans
	guestEnds
	// Nodes and cluster.
	binds
	misplaces
	removes
	evicts
	collects
	cutOff
	deafens
	heals
	dies
	forgets
	fences
	fallsBehind
	ticks
	// The user.
	asks
	cancels
	deletes
	orders
	doesCount
)

// action is one step of the world.
type action struct {
	does does
	// who is a process or a node, what an object or the number of a request.
	who  uint8
	what uint8
}

// fault is a kind of what a scenario allows to happen a few times only.
type fault uint8

const (
	noFault fault = iota
	crash
	answerLoss
	requestLoss
	delay
	relist
	oldList
	leaderChange
	cut
	deafness
	death
	moveFailure
	moveBreak
	guestEnd
	eviction
	misplacement
	preparationFailure
	timePassing
	moveWish
	cancellation
	deletion
	ordering
	faultCount
)

// budget is how often each may still happen, and in field 0 how many of those that
// are faults may happen in all.
type budget [faultCount]uint8

// costs is what an action uses up.
var costs = [doesCount]fault{
	answerLost: answerLoss, requestLost: requestLoss, requestLate: delay, crashes: crash, fallsBehind: oldList,
	relists: relist, relistsOld: relist, leads: leaderChange, moveFails: moveFailure, moveBreaks: moveBreak,
	guestEnds: guestEnd, misplaces: misplacement, evicts: eviction, cutOff: cut, deafens: deafness,
	filesFail: preparationFailure, listenFails: preparationFailure,
	dies: death, fences: death, ticks: timePassing, asks: moveWish, cancels: cancellation, deletes: deletion, orders: ordering,
}

// free reports whether the cost is none of those that are counted together.
func (f fault) free() bool { return f == noFault || f >= timePassing }

func (b *budget) allows(d does) bool {
	f := costs[d]
	return f == noFault || b[f] > 0 && (f.free() || b[noFault] > 0)
}

func (b *budget) spend(d does) {
	f := costs[d]
	if f == noFault {
		return
	}
	b[f]--
	if !f.free() {
		b[noFault]--
	}
}

// apply carries the action out. What it breaks is in m.broken.
func (m *machine) apply(w *world, a action) {
	m.broken = ""
	w.left.spend(a.does)
	focus := int8(-1)
	switch {
	case a.does <= stepsDown:
		if a.does == sees || a.does == relists || a.does == relistsOld {
			focus = int8(a.who)
		}
		m.applyToProcess(w, a)
	case a.does <= fades:
		m.applyToLate(w, a)
	case a.does <= guestEnds:
		m.applyToHypervisor(w, a)
	default:
		m.applyToCluster(w, a)
	}
	w.focus = focus
	m.hurry(w)
	rules{m}.judge(w)
}

func (m *machine) applyToProcess(w *world, a action) {
	p := int(a.who)
	pr := &w.procs[p]
	switch a.does {
	case sees:
		m.deliver(w, p, slot(a.what))
	case works:
		if p < agentA {
			controllers{m}.work(w, p, slot(a.what))
		} else {
			agents{m}.work(w, p, prepared)
		}
	case filesFail:
		agents{m}.work(w, p, noFiles)
	case listenFails:
		agents{m}.work(w, p, noSockets)
	case answered:
		ans, o := m.carry(w, pr.doing.req)
		m.respond(w, p, ans, o)
	case answerLost:
		m.carry(w, pr.doing.req)
		m.fault(w, p)
	case requestLost, timesOut:
		m.fault(w, p)
	case requestLate:
		w.late = append(w.late[:len(w.late):len(w.late)], pr.doing.req)
		m.fault(w, p)
	case calls:
		agents{m}.begin(w, p)
	default:
		m.upset(w, p, a.does)
	}
}

// upset is what happens to a process from outside.
func (m *machine) upset(w *world, p int, d does) {
	switch d {
	case crashes, stepsDown:
		w.lose(p)
	case restarts, relists, leads:
		m.list(w, p, &w.api)
	case restartsOld, relistsOld:
		m.list(w, p, w.old)
	}
}

// deliver delivers the next event of an object to a process.
func (m *machine) deliver(w *world, p int, s slot) {
	pr := &w.procs[p]
	o := pr.take(s)
	event := expectations.Updated
	if pr.sees[s] == nil {
		event = expectations.Added
	}
	pr.sees[s] = o
	if o.gone {
		event, pr.sees[s] = expectations.Deleted, nil
	}
	if p < agentA {
		notebook{m}.observe(w, p, note{kind: noteObserve, slot: o.slot, obj: o, event: event})
	}
}

// hurry delivers what a process lags behind by more than the scenario lets it.
func (m *machine) hurry(w *world) {
	if !w.pushed || m.lag == 0 {
		return
	}
	w.pushed = false
	for p := range w.procs {
		for s := range slotCount {
			for w.procs[p].waiting(s) > m.lag {
				m.deliver(w, p, s)
			}
		}
	}
}

// list replaces what a process sees by a list: what it starts with, or how it
// catches up after its watch broke. What the list lacks is reported as a tombstone.
func (m *machine) list(w *world, p int, from *[slotCount]*object) {
	pr := &w.procs[p]
	pr.up, pr.leads = true, p < agentA
	pr.queue = nil
	if p >= agentA {
		w.nodes[nodeOf(p)].beat = w.now
	}
	for s := range slotCount {
		was, is := pr.sees[s], from[s]
		if n := nodeOf(p); n != nowhere && is != nil && (s != slotVMI || !is.vmi.selects(n)) {
			is = nil
		}
		pr.sees[s] = is
		switch {
		case p >= agentA:
		case is != nil:
			notebook{m}.observe(w, p, note{kind: noteObserve, slot: is.slot, obj: is, event: expectations.Updated})
		case was != nil:
			notebook{m}.observe(w, p, note{kind: noteObserve, slot: was.slot, obj: was, event: expectations.DeletedUnknown})
		}
		m.catchUp(w, p, s)
	}
}

// catchUp queues what a lagging API server will report of an object in the
// end.
func (m *machine) catchUp(w *world, p int, s slot) {
	pr := &w.procs[p]
	is, n := w.api[s], nodeOf(p)
	if n != nowhere && is != nil && (s != slotVMI || !is.vmi.selects(n)) {
		is = nil
	}
	switch was := pr.sees[s]; {
	case is == was:
	case is != nil:
		pr.queue = append(pr.queue[:len(pr.queue):len(pr.queue)], is)
	default:
		gone := was.with(func(o *object) { o.gone = true })
		gone.rv = w.rv
		pr.queue = append(pr.queue[:len(pr.queue):len(pr.queue)], gone)
	}
}

func (m *machine) applyToLate(w *world, a action) {
	r := w.late[a.what]
	w.late = append(append([]request(nil), w.late[:a.what]...), w.late[a.what+1:]...)
	if a.does == lands {
		m.carry(w, r)
	}
}

func (m *machine) applyToHypervisor(w *world, a action) {
	n := place(a.who)
	node := &w.nodes[n]
	switch a.does {
	case callEnds:
		hypervisors{m}.land(w, n)
	case callFades:
		node.call = call{}
	case movesOn:
		hypervisors{m}.moveOn(w, n)
	case moveFails, dialFails:
		hypervisors{m}.moveFail(w, n)
	case moveBreaks:
		w.moveBreak(n)
	case cleans:
		node.domain, node.mark = noDomain, mark{}
	case guestEnds:
		node.domain = ended
		if w.past.seat == n {
			w.past.seat, w.past.excused = nowhere, true
		}
	}
}

func (m *machine) applyToCluster(w *world, a action) {
	switch a.does {
	case binds, misplaces:
		w.store(w.api[a.what].with(func(o *object) { o.node, o.ready = place(a.who), true }))
	case removes:
		w.vanish(w.api[a.what])
	case orders:
		w.order(order(a.what))
	case evicts, collects, deletes, cancels:
		w.past.evicted = w.past.evicted || a.does == evicts
		if a.does == deletes && slot(a.what) == slotVMI {
			w.past.due++
		}
		w.remove(w.api[a.what])
	case asks:
		w.uids[a.what]++
		w.store(object{slot: slot(a.what), uid: w.uids[a.what], move: w.known.movement(asked(slot(a.what), w.now))}.sealed())
	case fallsBehind:
		old := w.api
		w.old = &old
	case ticks:
		w.tick()
	default:
		w.applyToNode(place(a.who), a.does)
	}
}

func (w *world) applyToNode(n place, d does) {
	switch d {
	case cutOff:
		w.nodes[n].cut = true
	case deafens:
		w.nodes[n].deaf = true
	case heals:
		w.nodes[n].cut, w.nodes[n].deaf = false, false
		if w.procs[agentOf(n)].up {
			w.nodes[n].beat = w.now
		}
	case dies:
		w.die(n)
	case fences:
		w.die(n)
		w.nodes[n].fenced = true
	case forgets:
		w.nodes[n].gone = true
	}
}

// tick lets time pass.
func (w *world) tick() {
	w.now++
	for n := nodeA; n <= nodeB; n++ {
		if w.reachable(n) && w.procs[agentOf(n)].up {
			w.nodes[n].beat = w.now
		}
		if pr := &w.procs[agentOf(n)]; pr.ended == justNow {
			pr.ended = before
		}
	}
}
