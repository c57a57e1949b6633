// SPDX-License-Identifier: Apache-2.0

// Command virtprobe is /usr/bin/virt-probe of the launcher's image, which the kubelet runs in the container compute for the probes
// of a VMI:
//
//	virt-probe --domainName NAMESPACE_NAME --timeoutSeconds N --guestAgentPing
//	virt-probe --domainName NAMESPACE_NAME --timeoutSeconds N --command PROGRAM -- [ARGUMENT...]
//
// It asks the guest agent through the launcher of this Pod. The exit code is 0 if the agent answers, or that of the program in
// the guest; without either it is 1.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
)

const (
	defaultSocket = "/var/run/kubevirt/sockets/" + launcher.ReadySocket
	// askEvery is how often the agent, which sends no events, is asked whether the program has ended.
	askEvery = 100 * time.Millisecond
	// maxOutput bounds what is printed of the guest's program; the kubelet keeps 10 KiB.
	maxOutput = 10 << 10
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		_, _ = os.Stderr.WriteString("virt-probe: " + err.Error() + "\n")
	}
	os.Exit(code)
}

// question is what the flags ask for.
type question struct {
	domain, socket, command string
	arguments               []string
	timeout                 time.Duration
	ping                    bool
}

// run returns the exit code.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	q, err := parse(args)
	if err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	c, err := launcher.Dial(ctx, q.socket, launcher.Options{})
	if err != nil {
		return 1, err
	}
	defer func() { _ = c.Close() }() // the answer is there by then
	if q.ping {
		_, err := c.AgentCommand(ctx, q.domain, `{"execute":"guest-ping"}`)
		return exitOf(err), err
	}
	return q.execute(ctx, c, out)
}

func exitOf(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

// parse reads the flags, which are KubeVirt's.
func parse(args []string) (question, error) {
	var q question
	fs := flag.NewFlagSet("virt-probe", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&q.domain, "domainName", "", "")
	fs.StringVar(&q.socket, "socket", defaultSocket, "")
	fs.StringVar(&q.command, "command", "", "")
	fs.BoolVar(&q.ping, "guestAgentPing", false, "")
	seconds := fs.Int("timeoutSeconds", 1, "")
	if err := fs.Parse(args); err != nil {
		return q, err
	}
	q.arguments, q.timeout = fs.Args(), time.Duration(*seconds)*time.Second
	switch {
	case q.domain == "":
		return q, errors.New("--domainName: Required value")
	case *seconds < 1:
		return q, fmt.Errorf("--timeoutSeconds %d: Invalid value: must be positive", *seconds)
	case q.ping == (q.command != ""):
		return q, errors.New("set one of --command and --guestAgentPing")
	case q.ping && len(q.arguments) > 0:
		return q, fmt.Errorf("unexpected arguments %q", q.arguments)
	}
	return q, nil
}

// execute runs the program in the guest and waits for its end.
func (q question) execute(ctx context.Context, agent domain.GuestAgent, out io.Writer) (int, error) {
	var begun struct{ PID int }
	err := q.ask(ctx, agent, "guest-exec", map[string]any{"path": q.command, "arg": append([]string{}, q.arguments...), "capture-output": true}, &begun)
	if err != nil {
		return 1, err
	}
	for ticker := time.NewTicker(askEvery); ; {
		var status struct {
			Exited   bool
			ExitCode *int
			Signal   *int
			Out      string `json:"out-data"`
			Err      string `json:"err-data"`
		}
		if err := q.ask(ctx, agent, "guest-exec-status", map[string]any{"pid": begun.PID}, &status); err != nil {
			return 1, err
		}
		if status.Exited {
			ticker.Stop()
			show(out, status.Out, status.Err)
			switch {
			case status.Signal != nil:
				return 1, fmt.Errorf("%s was ended by signal %d in the guest", q.command, *status.Signal)
			case status.ExitCode == nil:
				return 1, errors.New("the guest agent does not report how the program ended")
			case *status.ExitCode < 0 || *status.ExitCode > 255:
				return 1, fmt.Errorf("the guest agent reports exit code %d", *status.ExitCode)
			}
			return *status.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 1, fmt.Errorf("%s has not ended in the guest: %w", q.command, ctx.Err())
		case <-ticker.C:
		}
	}
}

// show prints the output of the guest's program, as much as the kubelet keeps.
func show(out io.Writer, parts ...string) {
	for _, p := range parts {
		raw, err := base64.StdEncoding.DecodeString(p)
		if err == nil {
			_, _ = out.Write(raw[:min(len(raw), maxOutput)])
		}
	}
}

// ask calls the guest agent and reads its answer.
func (q question) ask(ctx context.Context, agent domain.GuestAgent, command string, arguments map[string]any, into any) error {
	raw, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if err != nil {
		return err
	}
	answer, err := agent.AgentCommand(ctx, q.domain, string(raw))
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(answer), &struct{ Return any }{into}); err != nil {
		return fmt.Errorf("the answer of the guest agent to %s: %w", command, err)
	}
	return nil
}
