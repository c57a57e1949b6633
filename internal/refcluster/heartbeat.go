// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/internal/rig"
)

// heartbeatWord begins a heartbeat line of the rig's guest image.
const heartbeatWord = "virtloom-heartbeat "

// Tick is one heartbeat of a guest.
type Tick struct {
	// N counts from one.
	N int
	// Node is the node of the guest.
	Node string
	// At is the time of observation.
	At time.Time
}

// Console follows the serial console of a guest on every node, from the logs
// the hypervisors write. Safe for concurrent use.
type Console struct {
	mu    sync.Mutex
	ticks []Tick
	lines []string
	// first is the first line of each source, and last what one wrote after
	// its last line break: a guest may move in the middle of a line.
	first map[source]Tick
	head  map[source]string
	last  map[source]partial
}

// partial is a line that was not ended, and when it was seen first.
type partial struct {
	text string
	at   time.Time
}

// lookLag is the maximum time between the write of a line and its observation.
const lookLag = 500 * time.Millisecond

// NewConsole returns a console that gets its lines by Add.
func NewConsole() *Console {
	return &Console{first: map[source]Tick{}, head: map[source]string{}, last: map[source]partial{}}
}

// Add records what a node's hypervisor has read from the console, on that visit of the guest, from one: a line, or the beginning
// of one that did not end there.
func (con *Console) Add(node string, visit int, text string, ended bool) {
	rest := text
	if ended {
		con.line(source{node, visit}, text)
		rest = ""
	}
	con.rest(source{node, visit}, rest)
}

// Follow reads a guest's console until ctx ends.
func (c *Cluster) Follow(ctx context.Context, uid types.UID) *Console {
	con := NewConsole()
	for _, n := range c.Nodes {
		go con.follow(ctx, n, uid)
	}
	return con
}

// follow reads the console logs of one node: each from when it appears, and
// from its beginning. A guest that comes back to a node writes another file.
func (con *Console) follow(ctx context.Context, n *rig.HypervisorNode, uid types.UID) {
	path := n.HostPath(filepath.Join(n.StateDir(), "guests", string(uid), convert.SerialLog))
	for visit := 0; ; {
		f, err := os.Open(path)
		if err == nil {
			visit++
			con.read(ctx, f, path, source{n.Name(), visit})
		}
		if !pause(ctx) {
			return
		}
	}
}

// source is where a line comes from: a node, and which of its visits.
type source struct {
	node  string
	visit int
}

// read reads one log until another takes its place.
func (con *Console) read(ctx context.Context, f *os.File, path string, src source) {
	defer func() { _ = f.Close() }()
	r := bufio.NewReader(f)
	for begun := ""; ; {
		text, err := r.ReadString('\n')
		begun += text
		if err == nil {
			con.line(src, strings.TrimSpace(begun))
			begun = ""
			continue
		}
		con.rest(src, begun)
		if !errors.Is(err, io.EOF) || text == "" && replaced(f, path) || !pause(ctx) {
			return
		}
	}
}

// replaced reports whether another file has the name by now.
func replaced(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return true
	}
	other, err := os.Stat(path)
	return err == nil && !os.SameFile(mine, other)
}

// pause waits a moment; false means that ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

func (con *Console) line(src source, text string) {
	con.mu.Lock()
	defer con.mu.Unlock()
	con.lines = append(con.lines, src.node+": "+text)
	t := Tick{N: heartbeatNumber(text), Node: src.node, At: time.Now()}
	if _, begun := con.first[src]; !begun {
		con.first[src], con.head[src] = t, text
	}
	if t.N > 0 {
		con.ticks = append(con.ticks, t)
	}
}

// rest notes the line a node has not ended yet, and when it came to that.
func (con *Console) rest(src source, text string) {
	con.mu.Lock()
	defer con.mu.Unlock()
	if con.last[src].text != text {
		con.last[src] = partial{text, time.Now()}
	}
}

// heartbeatNumber returns the number of the heartbeat in a line, zero if there is none.
func heartbeatNumber(text string) int {
	_, rest, found := strings.Cut(text, heartbeatWord+"n=")
	if !found {
		return 0
	}
	word, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(word)
	if err != nil {
		return 0
	}
	return n
}

// split returns the heartbeats whose lines began on one node and ended on
// another. A guest that moves often leaves several beginnings behind: an end belongs to
// the latest before it.
func (con *Console) split() []Tick {
	con.mu.Lock()
	defer con.mu.Unlock()
	var ticks []Tick
	for to, t := range con.first {
		if t.N > 0 {
			continue
		}
		var begin partial
		for from, p := range con.last {
			if from != to && p.text != "" && p.at.After(begin.at) && p.at.Before(t.At.Add(lookLag)) {
				begin = p
			}
		}
		if n := heartbeatNumber(begin.text + con.head[to]); n > 0 {
			ticks = append(ticks, Tick{N: n, Node: to.node, At: t.At})
		}
	}
	return ticks
}

// Ticks returns the heartbeats seen so far, in the order they were seen.
func (con *Console) Ticks() []Tick {
	con.mu.Lock()
	defer con.mu.Unlock()
	return append([]Tick(nil), con.ticks...)
}

// Lines returns the output of the guest so far.
func (con *Console) Lines() []string {
	con.mu.Lock()
	defer con.mu.Unlock()
	return append([]string(nil), con.lines...)
}

// AwaitTick waits for a heartbeat with a number above n, on the node if one is
// named.
func (con *Console) AwaitTick(ctx context.Context, node string, n int, within time.Duration) (last Tick, err error) {
	err = Await(ctx, within, fmt.Sprintf("a heartbeat above %d on %q", n, node), func(context.Context) error {
		for _, t := range con.Ticks() {
			if t.N > n && (node == "" || t.Node == node) {
				last = t
				return nil
			}
		}
		return fmt.Errorf("there are %d", len(con.Ticks()))
	})
	return last, err
}

// Check verifies that every heartbeat came once and in order and returns the
// longest time between two of them. The ticks of the source's last moment may
// be seen after the first of the target, so order is by number.
func (con *Console) Check() (longest time.Duration, err error) {
	seen := map[int]Tick{}
	highest := 0
	for _, t := range append(con.Ticks(), con.split()...) {
		if before, twice := seen[t.N]; twice {
			return 0, fmt.Errorf("heartbeat %d came twice: on %s and on %s", t.N, before.Node, t.Node)
		}
		seen[t.N], highest = t, max(highest, t.N)
	}
	for n := 2; n <= highest; n++ {
		now, before := seen[n], seen[n-1]
		if now.N == 0 || before.N == 0 {
			return 0, fmt.Errorf("heartbeat %d or %d was lost (of %d)", n-1, n, highest)
		}
		longest = max(longest, now.At.Sub(before.At))
	}
	return longest, nil
}
