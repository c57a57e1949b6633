// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"strings"
	"testing"
	"time"
)

// A guest that moved twice left the beginning of a line behind each time.
func TestConsole_SplitLines(t *testing.T) {
	con := &Console{first: map[source]Tick{}, head: map[source]string{}, last: map[source]partial{}}
	there, away, back := source{"a", 0}, source{"b", 0}, source{"a", 1}
	begun := time.Now().Add(-time.Minute)
	con.line(there, heartbeatWord+"n=1 up=1")
	con.last[there] = partial{heartbeatWord + "n=", begun}
	con.line(away, "2 up=2")
	con.first[away] = Tick{Node: "b", At: begun.Add(time.Second)}
	con.line(away, heartbeatWord+"n=3 up=3")
	con.last[away] = partial{heartbeatWord + "n=", begun.Add(20 * time.Second)}
	con.line(back, "4 up=4")
	con.first[back] = Tick{Node: "a", At: begun.Add(21 * time.Second)}
	if _, err := con.Check(); err != nil {
		t.Error(err)
	}
	con.line(back, heartbeatWord+"n=4 up=4")
	if _, err := con.Check(); err == nil || !strings.Contains(err.Error(), "came twice") {
		t.Errorf("a heartbeat that came twice is reported as %v", err)
	}
}
