// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"

	effects "github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// obstacle is a preparation that fails.
type obstacle uint8

const (
	prepared obstacle = iota
	noFiles
	noSockets
)

var errNotPrepared = errors.New("the node does not prepare it")

// listening is where targets take guests.
var listening = transport.Endpoint{Address: "192.0.2.1", Ports: map[string]int{"49152": transport.ChannelControl}}

// prepare carries out what the real plan.Preparations asks for, as package domainctrl does, and
// reports whether the node listens then.
func (s sight) prepare(in *plan.Snapshot) (listens bool) {
	var todo []effects.Action
	todo, in.PrepareError = plan.Preparations(*in)
	for _, t := range todo {
		fails := s.lacks == noFiles
		if t.Verb == effects.Listen {
			fails = s.lacks == noSockets
		}
		switch {
		case fails && (t.Needed || t.Verb == effects.Prepare):
			in.PrepareError = errNotPrepared
		case fails:
		case t.Verb == effects.Listen:
			in.TargetEndpoint, listens = listening, true
		case s.domain == noDomain || s.domain == ended:
			in.Desired = definition(!s.holding)
		}
		if t.Needed && fails {
			break
		}
	}
	return listens
}

// listen notes whether the agent has opened the sockets: a target must have, before it says that it
// is ready.
func (m agents) listen(w *world, p int, o *object, plan sighted) {
	w.procs[p].listens = plan.listens
	if plan.write != nil && o.vmi.lease.State == handoff.Preparing && plan.write.lease.State == handoff.Prepared && !plan.listens {
		m.breaks(nodeOf(p).String() + " is ready for the guest and does not listen")
	}
}
