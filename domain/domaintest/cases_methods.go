// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// pingCommand is a command that every agent supports.
const pingCommand = `{"execute":"guest-ping"}`

// method is a method of an ability.
type method struct {
	name    string
	ability Ability
	// ended is the error for a domain that does not run; nil for success.
	ended error
	call  func(*suite, context.Context) error
}

// methods are those about one domain. All return ErrNotFound for one that does not exist.
var methods = []method{
	{"GuestInfo", Agent, domain.ErrInvalidState, func(s *suite, ctx context.Context) error {
		_, err := s.agent().GuestInfo(ctx, s.name)
		return err
	}},
	{"Freeze", Agent, domain.ErrInvalidState, func(s *suite, ctx context.Context) error { return s.agent().Freeze(ctx, s.name) }},
	{"Thaw", Agent, domain.ErrInvalidState, func(s *suite, ctx context.Context) error { return s.agent().Thaw(ctx, s.name) }},
	{"SetTime", Agent, domain.ErrInvalidState, func(s *suite, ctx context.Context) error {
		return s.agent().SetTime(ctx, s.name, time.Unix(1, 0))
	}},
	{"AgentCommand", Agent, domain.ErrInvalidState, func(s *suite, ctx context.Context) error {
		_, err := s.agent().AgentCommand(ctx, s.name, pingCommand)
		return err
	}},
	{"TakeSnapshot with memory", Snapshots, domain.ErrInvalidState, func(s *suite, ctx context.Context) error {
		return s.keeper().TakeSnapshot(ctx, s.name, domain.Snapshot{Name: "a", Memory: true})
	}},
	{"Snapshots", Snapshots, nil, func(s *suite, ctx context.Context) error {
		_, err := s.keeper().Snapshots(ctx, s.name)
		return err
	}},
	{"RevertSnapshot", Snapshots, domain.ErrNotFound, func(s *suite, ctx context.Context) error {
		return s.keeper().RevertSnapshot(ctx, s.name, "nobody-took-it")
	}},
	{"DeleteSnapshot", Snapshots, nil, func(s *suite, ctx context.Context) error {
		return s.keeper().DeleteSnapshot(ctx, s.name, "nobody-took-it")
	}},
	{"OpenConsole", Consoles, domain.ErrInvalidState, func(s *suite, ctx context.Context) error {
		c, err := s.opener().OpenConsole(ctx, s.name, "")
		if err == nil {
			err = c.Close()
		}
		return err
	}},
	{"Migrate", Migration, domain.ErrInvalidState, func(s *suite, ctx context.Context) error {
		return s.migrator().Migrate(ctx, s.request())
	}},
	{"MigrationProgress", Migration, nil, func(s *suite, ctx context.Context) error {
		_, err := s.migrator().MigrationProgress(ctx, s.name)
		return err
	}},
	{"AbortMigration", Migration, nil, func(s *suite, ctx context.Context) error { return s.migrator().AbortMigration(ctx, s.name) }},
}

// methodCases call the methods of abilities where they have nothing to do.
func methodCases() map[string]conformanceCase {
	out := map[string]conformanceCase{}
	for _, m := range methods {
		out[m.name+" of an unknown domain"] = conformanceCase{needs: []Ability{m.ability}, run: func(s *suite) {
			s.is(m.name, m.call(s, s.ctx), domain.ErrNotFound)
		}}
		out[m.name+" of a guest that ended"] = conformanceCase{needs: []Ability{m.ability}, run: func(s *suite) {
			s.start()
			s.must(domain.Destroy)
			err := m.call(s, s.ctx)
			if m.ended == nil {
				s.ok(m.name, err)
				return
			}
			s.is(m.name, err, m.ended)
		}}
	}
	return out
}

func (s agentCase) agent() domain.GuestAgent { return ability[domain.GuestAgent](s.subject) }

func (s snapshotCase) keeper() domain.Snapshotter { return ability[domain.Snapshotter](s.subject) }

func (s consoleCase) opener() domain.ConsoleOpener { return ability[domain.ConsoleOpener](s.subject) }

func (s migrationCase) migrator() domain.Migrator { return ability[domain.Migrator](s.subject) }

func ability[A any](s *subject) A {
	s.Helper()
	a, ok := s.Hypervisor.(A)
	if !ok {
		s.Fatalf("the driver is not a %T and has not declared that", new(A))
	}
	return a
}

// consoleCase is about the serial console.
type consoleCase struct{ *subject }

// openConsole is an open console with all its output so far.
type openConsole struct {
	io.ReadWriteCloser
	ended chan struct{} // closed after the last byte

	mu   sync.Mutex
	said []byte
}

// console opens the console of the case and reads it at once: a guest blocks while no process reads its
// output.
func (s consoleCase) console(ctx context.Context) *openConsole {
	s.Helper()
	inner, err := s.opener().OpenConsole(ctx, s.name, "")
	s.ok("open console", err)
	c := &openConsole{ReadWriteCloser: inner, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		buf := make([]byte, 512)
		for {
			n, err := c.Read(buf)
			c.mu.Lock()
			c.said = append(c.said, buf[:n]...)
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// heard reports whether the guest's output contains a text.
func (c *openConsole) heard(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.said, []byte(what))
}

// echoes types until the echo appears; a booting guest ignores input.
func (s consoleCase) echoes(c *openConsole) {
	s.Helper()
	const word = "virtloom-echo"
	s.until("echo of the console", func() bool {
		if _, err := c.Write([]byte(word + "\n")); err != nil {
			s.Fatalf("write: %v", err)
		}
		return c.heard(word)
	})
}

// drains waits for the end of a console.
func (s consoleCase) drains(c *openConsole) {
	s.Helper()
	select {
	case <-c.ended:
	case <-s.ctx.Done():
		s.Fatal("the console did not end")
	}
}
