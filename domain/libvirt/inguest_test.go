// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/internal/rig"
)

// shell is a shell in a guest, on its serial console.
type shell struct {
	t     *testing.T
	conn  net.Conn
	asked int

	mu   sync.Mutex
	said bytes.Buffer
}

// openShell connects to the console of a guest that has booted, and starts a shell
// there.
func openShell(t *testing.T, n *rig.HypervisorNode, f convert.Facts) *shell {
	t.Helper()
	conn, err := net.Dial("unix", n.HostPath(filepath.Join(f.Dir, convert.SerialSocket)))
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t, conn: conn}
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = io.Copy(writerFunc(s.hear), conn) })
	t.Cleanup(func() {
		_ = conn.Close()
		reader.Wait()
	})
	s.enter()
	return s
}

// writerFunc makes a function a writer.
type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func (s *shell) hear(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said.Write(p)
}

func (s *shell) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.said.String(), "\r", "")
}

// enter starts a shell: any line does, once the guest is up.
func (s *shell) enter() {
	s.t.Helper()
	s.write("\n")
	s.in("true")
}

func (s *shell) write(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.conn, text); err != nil {
		s.t.Fatal(err)
	}
}

// in runs a command in the guest and returns its output. The marks around the output are not in the
// command as typed, which the console echoes.
func (s *shell) in(command string) string {
	s.t.Helper()
	s.asked++
	s.write(fmt.Sprintf("echo '<'%d'>'; %s; echo '</'%[1]d'>'\n", s.asked, command))
	begin, end := fmt.Sprintf("<%d>\n", s.asked), fmt.Sprintf("</%d>", s.asked)
	answer := ""
	await(s.t, "an answer of the guest to "+command, func() bool {
		_, after, begun := strings.Cut(s.text(), begin)
		before, _, ended := strings.Cut(after, end)
		answer = before
		return begun && ended
	})
	return strings.TrimSpace(answer)
}

// sees waits until a command in the guest has the output.
func (s *shell) sees(what, command string, ok func(string) bool) {
	s.t.Helper()
	last := ""
	defer func() {
		if s.t.Failed() {
			s.t.Logf("%s: the last answer to %s was %q", what, command, last)
		}
	}()
	await(s.t, "in the guest: "+what, func() bool {
		last = s.in(command)
		return ok(last)
	})
}

// equals is for sees.
func equals(want string) func(string) bool { return func(got string) bool { return got == want } }
