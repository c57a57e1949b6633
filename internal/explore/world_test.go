// SPDX-License-Identifier: Apache-2.0

package explore

import "slices"

// The processes: two controllers and the agent of either node.
const (
	ctrl1 = iota
	ctrl2
	agentA
	agentB
	procCount
)

var procNames = [procCount]string{"c1", "c2", "a", "b"}

// nodeOf is the node an agent serves; nowhere for a controller.
func nodeOf(p int) place {
	if p < agentA {
		return nowhere
	}
	return place(p-agentA) + nodeA
}

func agentOf(n place) int { return agentA + int(n-nodeA) }

// world is one state of everything. It is copied by assignment: what slices and
// pointers lead to is never changed.
type world struct {
	now int8
	rv  uint16
	// focus is the process that must go on, -1 if any may; see package comment.
	focus int8
	// api is what the API server has stored.
	api  [slotCount]*object
	uids [slotCount]uint8
	// old is what an API server that lags behind knows, nil if none does.
	old   *[slotCount]*object
	procs [procCount]proc
	nodes [3]machineState
	// late are requests whose senders got no answer and that may still be carried
	// out.
	late []request
	left budget
	past past
	// names counts the Pods for which a name was made up.
	names uint8
	// pushed says that something was pushed by the current action.
	pushed bool
	// holding says that moves let the guest arrive held, known is what was understood of
	// contents. They never change.
	holding bool
	known   *memory
	// orders is what the user of a VirtualMachine may ask for. It never changes.
	orders orderSet
}

// proc is the memory of a process.
type proc struct {
	up bool
	// leads says that a controller believes to be the leader.
	leads bool
	// live says that an agent's next pass reads the object live, because its last
	// write met a conflict.
	live bool
	sees [slotCount]*object
	// queue are the versions that the process is yet to see: those of one object
	// in their order, of different objects in any.
	queue []*object
	// notes are the notes to the process's expectations since they last were
	// satisfied, for each of owners.
	notes [len(owners)][]note
	doing doing
	// moving says that an agent carries out a migration, or looks after one; ended
	// is when the last one was over, and failed that it did not migrate the domain.
	moving bool
	ended  recency
	failed bool
	// listens says that an agent has opened the sockets for a migration to its node.
	listens bool
}

// stage is where a process is in its pass.
type stage uint8

const (
	// idle: between two passes.
	idle stage = iota
	// asking: a request has left the process, its answer is awaited.
	asking
	// ready: something is about to be done at the hypervisor.
	ready
	// calling: the hypervisor was called.
	calling
)

// doing is what a process remembers within a pass.
type doing struct {
	stage stage
	req   request
	// pass is what a controller goes by, and act what it has asked for.
	pass *pass
	act  act
	// tasks are what an agent is to do at the hypervisor, after the answer to req if
	// there is one, as the lease of by says, which was confirmed then.
	tasks     []task
	by        *guest
	confirmed int8
}

// verb is what a request asks of the API server.
type verb uint8

const (
	create verb = iota + 1
	update
	remove
)

// request is one write.
type request struct {
	verb verb
	slot slot
	// uid and base are the preconditions: which object, at which version.
	uid  uint8
	base uint16
	// from is what a change was made from, if it has other guards than the version.
	from   *object
	want   *object
	guards guards
	by     int8
	// orphan says that no process can be blamed for it: the process that sent it has
	// lost its memory, or it asks for a name that was taken meanwhile, so that the
	// process may take the other object for its own.
	orphan bool
}

// domainState is what a node's hypervisor has of the guest.
type domainState uint8

const (
	noDomain domainState = iota
	running
	// incoming: memory is being received; the guest does not run.
	incoming
	// paused: stopped for the switch of a move.
	paused
	// ended: the guest ran here and does not any more.
	ended
	// held: all of the guest has come, and it does not run yet.
	held
	// left: the guest ran here and was moved away.
	left
)

var domainNames = [...]string{"none", "running", "incoming", "paused", "ended", "held", "left"}

// over reports whether the guest ran here and has ended.
func (d domainState) over() bool { return d == ended || d == left }

// jobPhase is how far the hypervisor at the source is in migrating the domain.
type jobPhase uint8

const (
	noJob jobPhase = iota
	jobAsked
	jobCopying
	jobPaused
	jobResumed
)

// call is a call to a hypervisor that has not ended.
type call struct {
	task  task
	begun int8
}

// machineState is a node and its hypervisor. All of it outlives the agent.
type machineState struct {
	dead bool
	// gone says that the Node object was deleted.
	gone bool
	// fenced says that a fencing device has switched the node off.
	fenced bool
	// cut says that nothing on the node reaches the API server; deaf that the
	// agent alone does not.
	cut, deaf bool
	// beat is when the agent last gave a sign of life.
	beat   int8
	domain domainState
	// mark is what the domain carries.
	mark  mark
	job   jobPhase
	jobTo place
	// jobHeld says that the guest is to arrive held.
	jobHeld bool
	call    call
}

// past is what must be remembered of the past to judge the present.
type past struct {
	// seat is the node whose domain is the guest: running, or the only one that
	// may run on.
	seat place
	// uid is the object whose guest that is, pod the Pod it lives in there.
	uid    uint8
	pod    slot
	podUID uint8
	// started and moved are the epochs whose commands were carried out.
	started, moved uint64
	// excused says why the guest may be lost.
	excused bool
	// due is how many guests of a VirtualMachine may have been created by now.
	due uint8
	// evicted says that the cluster has deleted a Pod of its own accord.
	evicted bool
}

func (w *world) reachable(n place) bool {
	m := &w.nodes[n]
	return !m.dead && !m.cut && !m.deaf
}

// silent reports whether the node's agent sent no heartbeat for a tick.
func (w *world) silent(n place) bool {
	return n != nowhere && w.now > w.nodes[n].beat
}

// push delivers a new version into the watches.
func (w *world) push(o *object) {
	w.pushed = true
	for p := range w.procs {
		pr := &w.procs[p]
		if !pr.up {
			continue
		}
		event := o
		if n := nodeOf(p); n != nowhere {
			if o.slot != slotVMI {
				continue
			}
			if event = selected(o, n, pr.last(slotVMI)); event == nil {
				continue
			}
		}
		pr.queue = append(slices.Clip(pr.queue), event)
	}
}

// selected is what a node's watch makes of a version: an object that leaves its
// selection looks like a removed one. It is nil if there is no event.
func selected(o *object, n place, last *object) *object {
	had := last != nil && !last.gone
	switch {
	case !o.gone && o.vmi.selects(n):
		return o
	case had:
		return o.with(func(n *object) { n.gone = true })
	default:
		return nil
	}
}

// last is the newest version that the process has or will get.
func (p *proc) last(s slot) *object {
	for _, o := range slices.Backward(p.queue) {
		if o.slot == s {
			return o
		}
	}
	return p.sees[s]
}

// waiting counts the versions of an object that the process is yet to see.
func (p *proc) waiting(s slot) int {
	n := 0
	for _, o := range p.queue {
		if o.slot == s {
			n++
		}
	}
	return n
}

// take takes the next version of an object out of the queue.
func (p *proc) take(s slot) *object {
	i := slices.IndexFunc(p.queue, func(o *object) bool { return o.slot == s })
	o := p.queue[i]
	p.queue = slices.Concat(p.queue[:i], p.queue[i+1:])
	return o
}
