// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is a command of refdaemon, parsed from its help.
type command struct {
	// flags are without dashes, letters and names.
	flags []string
	// within are the commands that it has.
	within []string
}

var (
	daemon  = regexp.MustCompile(`refdaemon((?: +[^\n|;&#<>]*)?)`)
	flagged = regexp.MustCompile(`(?:^|[\s(])(?:--([a-z][a-z0-9-]+)|-([a-zA-Z])(?:[\s=]|$))`)
	single  = regexp.MustCompile(`^(?:--([a-z][a-z0-9-]+)|-([a-zA-Z]))(?:[ =].*)?$`)
	word    = regexp.MustCompile(`^[a-z][a-z-]*$`)

	listed     = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) `)
	listedFlag = regexp.MustCompile(`(?m)^ +(?:-([a-zA-Z]), )?--([a-z][a-z0-9-]+)`)
)

// unknownCommands are commands and flags of refdaemon in a text that it does not have.
func (k known) unknownCommands(text string) []mention {
	var out []mention
	text = strings.ReplaceAll(text, "\\\n", " ")
	for _, m := range daemon.FindAllStringSubmatch(text, -1) {
		name, found := "", true
		for _, w := range strings.Fields(m[1]) {
			if within := k.commands[name].within; len(within) == 0 || !word.MatchString(w) {
				break
			}
			name = strings.TrimSpace(name + " " + w)
			if _, found = k.commands[name]; !found {
				out = append(out, mention{"command", name})
				break
			}
		}
		if !found {
			continue
		}
		for _, f := range flagged.FindAllStringSubmatch(m[1], -1) {
			if !slices.Contains(k.commands[name].flags, f[1]+f[2]) {
				out = append(out, mention{strings.TrimSpace("flag of " + name), f[1] + f[2]})
			}
		}
	}
	return out
}

// hasFlag reports whether any command has that flag.
func (k known) hasFlag(m []string) bool {
	for _, c := range k.commands {
		if slices.Contains(c.flags, m[1]+m[2]) {
			return true
		}
	}
	return false
}

// described reads what a command prints of itself.
func described(help string) command {
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var c command
	for _, m := range listed.FindAllStringSubmatch(list, -1) {
		c.within = append(c.within, m[1])
	}
	_, flags, _ := strings.Cut(help, "\nFlags:\n")
	for _, m := range listedFlag.FindAllStringSubmatch(flags, -1) {
		c.flags = append(c.flags, m[2])
		if m[1] != "" {
			c.flags = append(c.flags, m[1])
		}
	}
	return c
}

// ask parses refdaemon's commands, their subcommands, and all flags from the help.
func (k known) ask(t *testing.T) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "refdaemon")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-tags", "libvirt_dlopen", "-o", program, "./refdaemon")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for next := []string{""}; len(next) > 0; next = next[1:] {
		name := next[0]
		out, err := exec.CommandContext(t.Context(), program, append(strings.Fields(name), "-h")...).CombinedOutput()
		if err != nil {
			t.Fatalf("refdaemon %s -h: %v\n%s", name, err, out)
		}
		c := described(string(out))
		if len(c.flags) == 0 {
			t.Fatalf("the help of refdaemon %s lists no flag:\n%s", name, out)
		}
		k.commands[name] = c
		for _, w := range c.within {
			next = append(next, strings.TrimSpace(name+" "+w))
		}
	}
	if len(k.commands) < 10 {
		t.Fatalf("the help of refdaemon lists only these commands: %v", k.commands)
	}
}
