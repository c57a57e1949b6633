// SPDX-License-Identifier: Apache-2.0

package explore

import "testing"

// small are scenarios that are explored completely, or as far as states say, in seconds,
// by all kinds of faults.
var small = []struct {
	name   string
	states int
	in     Scenario
}{
	{"boot", 0, Scenario{lag: 2}},
	{"old lists", 20_000, Scenario{lag: 1, Faults: 2, allow: budget{}.plus(oldList, relist)}},
	{"late writes", 20_000, Scenario{lag: 1, Faults: 1, allow: budget{}.plus(delay, deletion)}},
	{"restarts", 20_000, Scenario{lag: 1, Faults: 2, allow: budget{}.plus(oldList, crash)}},
	{"deletion", 20_000, Scenario{lag: 1, allow: budget{}.plus(deletion)}},
	{"move", 20_000, Scenario{lag: 1, Start: moves}},
	{"move, unprepared", 20_000, Scenario{lag: 1, Faults: 1, Start: moves, allow: budget{}.plus(crash, preparationFailure)}},
	{"switch", 20_000, Scenario{lag: 1, Faults: 1, Start: begins, allow: budget{}.plus(moveFailure, moveBreak)}},
	{"switch, held", 20_000, Scenario{lag: 1, Faults: 1, Start: begins, holding: true, allow: budget{}.plus(moveFailure, moveBreak)}},
	{"silent nodes", 20_000, Scenario{lag: 1, Faults: 1, Start: runs, allow: budget{}.plus(cut, death).many(timePassing, 5)}},
	{"silent nodes in a switch", 20_000, Scenario{lag: 1, Faults: 2, Start: begins, allow: budget{}.plus(cut, death, moveBreak).many(timePassing, 5)}},
}

func TestSmall(t *testing.T) {
	for _, tt := range small {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Search(&tt.in, Limits{Workers: 2, States: tt.states, Settle: 100})
			if err != nil {
				t.Fatal(err)
			}
			show(t, "%s: %s", tt.name, r)
			if r.Violation != nil {
				t.Errorf("%s", r.Violation)
			}
		})
	}
}
