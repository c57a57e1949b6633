// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/handoff"
)

var update = flag.Bool("update", false, "rewrite what the tests compare with")

// leases are the states of a lease in the order of a VMI's life, and what the nodes with a role do in them.
var leases = []struct {
	state handoff.State
	does  string
}{
	{handoff.Unclaimed, ""},
	{handoff.Claimed, ""},
	{handoff.Offered, "accepts the VMI and starts it, or reports why not"},
	{handoff.Owned, "keeps the domain as in the spec, and reports its status"},
	{handoff.Preparing, "the target prepares to receive the VMI"},
	{handoff.Prepared, "the holder starts the migration"},
	{handoff.Moving, "the holder migrates the VMI, or aborts if requested; the target receives it"},
	{handoff.Arrived, "the holder, which was the target, finalizes the migration"},
	{handoff.Releasing, "stops the domain, within the grace period"},
	{handoff.Released, ""},
	{handoff.Lost, "the holder returns, and stores that first; the target of a migration may have the VMI"},
	{handoff.Fenced, "as above, without the holder"},
}

// roles returns the table of the roles of nodes; blank is RoleNone.
func roles() string {
	var b strings.Builder
	fmt.Fprintf(&b, "//\t%-10s %-8s %-7s %-6s\n", "lease", "holder", "target", "others")
	for _, l := range leases {
		lease := handoff.Lease{State: l.state}
		if l.state != handoff.Unclaimed && l.state != handoff.Claimed { // these name no node
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
			role := strings.ToLower(string(handoff.RoleOf(lease, n.node)))
			if role == "none" {
				role = ""
			}
			line += fmt.Sprintf(" %-*s", n.width, role)
		}
		b.WriteString(strings.TrimRight(line+"  "+l.does, " ") + "\n")
	}
	return b.String()
}

func TestDoc_Roles(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "the state of its hypervisor:\n//\n", "//\n// A pass is the same"
	head, rest, found := strings.Cut(string(raw), begin)
	table, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("doc.go has no table of roles")
	}
	want := roles()
	if *update {
		if err := os.WriteFile("doc.go", []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("the table in doc.go is not that of the code (rewrite it with -update):\n%s", want)
	}
}
