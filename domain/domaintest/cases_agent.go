// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
)

// agentCases are about the guest agent.
var agentCases = map[string]conformanceCase{
	"a guest without an agent is distinguished from one with": {needs: []Ability{Agent}, run: func(s *suite) {
		s.needs = nil
		s.start()
		_, err := s.agent().GuestInfo(s.ctx, s.name)
		s.is("guest info", err, domain.ErrNoAgent)
		_, err = s.agent().AgentCommand(s.ctx, s.name, pingCommand)
		s.is("command", err, domain.ErrNoAgent)
		s.is("freeze", s.agent().Freeze(s.ctx, s.name), domain.ErrNoAgent)
		s.is("thaw", s.agent().Thaw(s.ctx, s.name), domain.ErrNoAgent)
		s.is("set time", s.agent().SetTime(s.ctx, s.name, time.Unix(1, 0)), domain.ErrNoAgent)
	}},
	"the agent reports the guest": {needs: []Ability{Agent}, run: func(s *suite) {
		info := s.startWithAgent()
		if info.AgentVersion == "" || !slices.Contains(info.Commands, "guest-ping") || !slices.IsSorted(info.Commands) {
			s.Errorf("agent is %q with %q", info.AgentVersion, info.Commands)
		}
		if info.Frozen {
			s.Error("the file systems are frozen")
		}
	}},
	"the agent answers commands that it knows": {needs: []Ability{Agent}, run: func(s *suite) {
		s.startWithAgent()
		answer, err := s.agent().AgentCommand(s.ctx, s.name, pingCommand)
		s.ok("command", err)
		if !json.Valid([]byte(answer)) {
			s.Errorf("the answer is not JSON: %s", answer)
		}
		_, err = s.agent().AgentCommand(s.ctx, s.name, `{"execute":"guest-dance"}`)
		s.is("command", err, domain.ErrNoAgent)
	}},
	"what is no command is invalid": {needs: []Ability{Agent}, run: func(s *suite) {
		s.start()
		for _, command := range []string{"", "guest-ping", `{"execute":""}`, `{"execute":"guest-ping"`, `[]`} {
			_, err := s.agent().AgentCommand(s.ctx, s.name, command)
			s.is(command, err, domain.ErrInvalid)
		}
	}},
	"file systems freeze and thaw, each repeated": {needs: []Ability{Agent, FullAgent}, run: func(s *suite) {
		s.startWithAgent()
		for _, frozen := range []bool{true, true, false, false, true, false} {
			do := s.agent().Thaw
			if frozen {
				do = s.agent().Freeze
			}
			s.ok("freeze or thaw", do(s.ctx, s.name))
			info, err := s.agent().GuestInfo(s.ctx, s.name)
			s.ok("guest info", err)
			if info.Frozen != frozen {
				s.Errorf("frozen: %t, want %t", info.Frozen, frozen)
			}
		}
	}},
	"freezing and thawing a guest without file systems does no harm": {needs: []Ability{Agent}, run: func(s *suite) {
		s.startWithAgent()
		for range 2 {
			s.ok("freeze", s.agent().Freeze(s.ctx, s.name))
			s.ok("thaw", s.agent().Thaw(s.ctx, s.name))
		}
		info, err := s.agent().GuestInfo(s.ctx, s.name)
		if err != nil || info.Frozen {
			s.Errorf("guest is %+v, %v", info, err)
		}
	}},
	"a paused guest's agent says nothing": {needs: []Ability{Agent}, run: func(s *suite) {
		s.startWithAgent()
		s.must(domain.Suspend)
		_, err := s.agent().GuestInfo(s.ctx, s.name)
		s.is("guest info", err, domain.ErrInvalidState)
		s.is("freeze", s.agent().Freeze(s.ctx, s.name), domain.ErrInvalidState)
	}},
	"the guest's clock can be set": {needs: []Ability{Agent, FullAgent}, run: func(s *suite) {
		s.startWithAgent()
		s.ok("set time", s.agent().SetTime(s.ctx, s.name, time.Unix(2_000_000_000, 0)))
	}},
	"a reboot by the agent keeps the domain": {needs: []Ability{Agent, Resets}, run: func(s *suite) {
		s.startWithAgent()
		s.must(domain.Reboot, byAgent)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"conversations with one agent take turns": {needs: []Ability{Agent}, run: func(s *suite) {
		s.startWithAgent()
		errs := make(chan error)
		const n = 4
		for range n {
			go func() {
				_, err := s.agent().AgentCommand(s.ctx, s.name, pingCommand)
				errs <- err
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				s.Error(err)
			}
		}
	}},
	"an agent that does not answer holds up no operation": {needs: []Ability{Agent}, run: func(s *suite) {
		s.needs = nil
		s.start()
		ctx, cancel := context.WithCancel(s.ctx)
		answered := make(chan error, 1)
		go func() {
			_, err := s.agent().GuestInfo(ctx, s.name)
			answered <- err
		}()
		s.must(domain.Suspend)
		s.must(domain.Resume)
		cancel()
		select {
		case err := <-answered:
			if !errors.Is(err, domain.ErrNoAgent) && !errors.Is(err, domain.ErrInvalidState) && !errors.Is(err, context.Canceled) {
				s.Errorf("guest info: %v", err)
			}
		case <-s.ctx.Done():
			s.Error("the agent's call did not end with its context")
		}
	}},
}

// agentCase is about the guest agent.
type agentCase struct{ *subject }

// startWithAgent starts the domain and waits until its agent answers.
func (s agentCase) startWithAgent() guestagent.Info {
	s.Helper()
	s.start()
	var info guestagent.Info
	s.until("answer of the agent", func() bool {
		var err error
		info, err = s.agent().GuestInfo(s.ctx, s.name)
		if err != nil && !errors.Is(err, domain.ErrNoAgent) {
			s.Fatalf("guest info: %v", err)
		}
		return err == nil
	})
	return info
}
