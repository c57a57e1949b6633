// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"strings"
)

// phrases are how scripts spell actions. WHO is a process or node, WHAT an object
// or the number of a late request.
var phrases = [doesCount]string{
	sees: "WHO sees WHAT", works: "WHO works on WHAT", filesFail: "WHO works without files", listenFails: "WHO works without sockets", answered: "WHO is answered", answerLost: "WHO loses the answer",
	requestLost: "WHO loses the request", requestLate: "WHO gives up a request that is late", timesOut: "WHO times out",
	calls: "WHO makes the call", crashes: "WHO crashes", restarts: "WHO starts", restartsOld: "WHO starts from an old list",
	relists: "WHO lists anew", relistsOld: "WHO lists anew from an old list", leads: "WHO becomes the leader", stepsDown: "WHO steps down",
	lands: "late request NUMBER arrives", fades: "late request NUMBER never arrives",
	callEnds: "hypervisor NODE carries out the call", callFades: "hypervisor NODE never hears it",
	movesOn: "hypervisor NODE moves the guest on", moveFails: "hypervisor NODE fails to move the guest",
	moveBreaks: "hypervisor NODE forgets the move", dialFails: "hypervisor NODE reaches nobody", cleans: "hypervisor NODE drops what came of the move",
	guestEnds: "guest ends on NODE", binds: "scheduler puts WHAT on NODE", misplaces: "scheduler puts WHAT wrongly on NODE",
	removes: "kubelet removes WHAT", evicts: "cluster evicts WHAT", collects: "cluster collects WHAT",
	cutOff: "node NODE is cut off", deafens: "agent NODE is cut off", heals: "node NODE is connected again", dies: "node NODE dies",
	forgets: "node NODE is deleted", fences: "node NODE is fenced", fallsBehind: "an API server falls behind", ticks: "a minute passes",
	asks: "user asks for WHAT", cancels: "user cancels WHAT", deletes: "user deletes WHAT", orders: "user orders ORDER",
}

// phraseWords are the phrases in words, made once.
var phraseWords = func() (out [doesCount][]string) {
	for d, p := range phrases {
		out[d] = strings.Fields(p)
	}
	return out
}()

// String is the line of a script.
func (a action) String() string {
	words := make([]string, 0, 8)
	for _, w := range phraseWords[a.does] {
		switch w {
		case "WHO":
			w = procNames[a.who]
		case "NODE":
			w = place(a.who).String()
		case "WHAT":
			w = slot(a.what).String()
		case "ORDER":
			w = order(a.what).String()
		case "NUMBER":
			w = fmt.Sprint(a.what + 1)
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// parseAction reads a line of a script.
func parseAction(line string) (action, bool) {
	have := strings.Fields(line)
	for d, want := range phraseWords {
		if a, ok := matchPhrase(does(d), want, have); ok {
			return a, true
		}
	}
	return action{}, false
}

func matchPhrase(d does, want, have []string) (action, bool) {
	a := action{does: d}
	if len(want) != len(have) {
		return a, false
	}
	for i, w := range want {
		var names []string
		field := &a.who
		switch w {
		case "WHO":
			names = procNames[:]
		case "NODE":
			names = places[:]
		case "WHAT":
			names, field = slotNames[:], &a.what
		case "ORDER":
			names, field = orderNames[:], &a.what
		case "NUMBER":
			names, field = []string{"1", "2", "3", "4"}, &a.what
		default:
			if w != have[i] {
				return a, false
			}
			continue
		}
		found := false
		for k, n := range names {
			if n == have[i] {
				*field, found = uint8(k), true
			}
		}
		if !found {
			return a, false
		}
	}
	return a, true
}
