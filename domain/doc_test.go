// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/handoff"
)

// leases are the states of a lease in the order of a guest's life, and what a node does in them that is not nothing to the guest.
var leases = []struct {
	state handoff.State
	does  string
}{
	{handoff.Unclaimed, ""},
	{handoff.Claimed, ""},
	{handoff.Offered, "accepts the guest and starts it, or says why not"},
	{handoff.Owned, "keeps the domain as the object wants it, and tells its status"},
	{handoff.Preparing, "the target makes ready to receive"},
	{handoff.Prepared, "the holder begins to move the guest"},
	{handoff.Moving, "the holder moves it, aborts if asked; the target receives it"},
	{handoff.Arrived, "the holder, which was the target, settles what the move has changed"},
	{handoff.Releasing, "ends the guest, in the time it is given"},
	{handoff.Released, ""},
	{handoff.Lost, "the holder comes back, and says so first; a target, if it was lost in a move, may have the guest"},
	{handoff.Fenced, "as above, without the holder"},
}

// roles is the table of what nodes are to a guest; nothing is RoleNone.
func roles() string {
	var b strings.Builder
	fmt.Fprintf(&b, "//\t%-10s %-8s %-7s %-6s\n", "lease", "holder", "target", "others")
	for _, l := range leases {
		lease := handoff.Lease{State: l.state}
		if l.state != handoff.Unclaimed && l.state != handoff.Claimed { // which name nobody
			lease.Holder, lease.Target = "holder", "target"
		}
		line := fmt.Sprintf("//\t%-10s", l.state)
		if l.state == handoff.Unclaimed {
			line = "//\tUnclaimed "
		}
		for _, n := range []struct {
			node  string
			width int
		}{{"holder", 8}, {"target", 7}, {"another", 6}} {
			role := strings.ToLower(string(RoleOf(lease, n.node)))
			if role == "none" {
				role = ""
			}
			line += fmt.Sprintf(" %-*s", n.width, role)
		}
		b.WriteString(strings.TrimRight(line+"  "+l.does, " ") + "\n")
	}
	return b.String()
}

func TestTheDocumentedRolesAreThoseOfTheCode(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "what its hypervisor has:\n//\n", "//\n// A pass is the same"
	head, rest, found := strings.Cut(string(raw), begin)
	told, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("doc.go does not tell what a node is to a guest")
	}
	want := roles()
	if *update {
		if err := os.WriteFile("doc.go", []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if told != want {
		t.Errorf("the table in doc.go is not that of the code (rewrite it with -update):\n%s", want)
	}
}
