// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// agent answers with what a test wants.
type agent struct {
	domain.GuestAgent
	answers []string
	asked   []string
}

// AgentCommand implements domain.GuestAgent.
func (a *agent) AgentCommand(ctx context.Context, _, command string) (string, error) {
	a.asked = append(a.asked, command)
	if len(a.answers) == 0 {
		return "", errors.Join(domain.ErrNoAgent, ctx.Err())
	}
	out := a.answers[0]
	if len(a.answers) > 1 {
		a.answers = a.answers[1:]
	}
	return out, nil
}

func TestExecute_Ends(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		code    int
		says    string
	}{
		"at once":            {[]string{`{"return":{"pid":7}}`, `{"return":{"exited":true,"exitcode":0,"out-data":"aGk="}}`}, 0, ""},
		"after a while":      {[]string{`{"return":{"pid":7}}`, `{"return":{"exited":false}}`, `{"return":{"exited":true,"exitcode":3}}`}, 3, ""},
		"by a signal":        {[]string{`{"return":{"pid":7}}`, `{"return":{"exited":true,"signal":9}}`}, 1, "signal 9"},
		"never":              {[]string{`{"return":{"pid":7}}`, `{"return":{"exited":false}}`}, 1, "has not ended"},
		"without a code":     {[]string{`{"return":{"pid":7}}`, `{"return":{"exited":true}}`}, 1, "does not report"},
		"with a strange one": {[]string{`{"return":{"pid":7}}`, `{"return":{"exited":true,"exitcode":256}}`}, 1, "256"},
		"in garbage":         {[]string{`{"return":{"pid":"x"}}`}, 1, "answer"},
		"no agent":           {nil, 1, domain.ErrNoAgent.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{answers: c.answers}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			var out bytes.Buffer
			code, err := question{domain: "ns_vmi", command: "cat", arguments: []string{`/x "y"`}}.execute(ctx, a, &out)
			if code != c.code || (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d, %v", code, err)
			}
			if want := `{"arguments":{"arg":["/x \"y\""],"capture-output":true,"path":"cat"},"execute":"guest-exec"}`; a.asked[0] != want {
				t.Errorf("asked %s", a.asked[0])
			}
			if name == "at once" && out.String() != "hi" {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}

func TestParse_Flags(t *testing.T) {
	q, err := parse([]string{"--domainName", "a_b", "--timeoutSeconds", "4", "--command", "cat", "--", "--show", "/x"})
	if err != nil || q.command != "cat" || q.timeout != 4*time.Second || strings.Join(q.arguments, " ") != "--show /x" || q.socket != "/var/run/kubevirt/sockets/launcher-sock" {
		t.Errorf("%+v, %v", q, err)
	}
	for _, args := range [][]string{
		nil, {"--domainName", "a_b"}, {"--guestAgentPing"}, {"--domainName", "a_b", "--guestAgentPing", "--command", "x"},
		{"--domainName", "a_b", "--guestAgentPing", "x"}, {"--domainName", "a_b", "--timeoutSeconds", "0", "--guestAgentPing"}, {"--other"},
	} {
		if code, err := run(t.Context(), args, nil); code != 1 || err == nil {
			t.Errorf("%q: %d, %v", args, code, err)
		}
	}
	if code, err := run(t.Context(), []string{"--domainName", "a_b", "--guestAgentPing", "--socket", t.TempDir() + "/none"}, nil); code != 1 || !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("%d, %v", code, err)
	}
}
