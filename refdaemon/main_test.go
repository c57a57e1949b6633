// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

func TestRun_Usage(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		fail string
	}{
		"nothing":          {nil, ""},
		"help":             {[]string{"help"}, ""},
		"-h":               {[]string{"-h"}, ""},
		"--help":           {[]string{"--help"}, ""},
		"unknown command":  {[]string{"nodes"}, `unknown command "nodes"`},
		"unknown flag":     {[]string{"--nonsense"}, "unknown flag: --nonsense; refdaemon -h"},
		"nothing of group": {[]string{"config", "x"}, `config: unknown command "x"; use one of print-defaults, validate; see refdaemon config -h`},
	} {
		var out bytes.Buffer
		err := run(t.Context(), tt.args, &out)
		if tt.fail != "" {
			if out.Len() > 0 || err == nil || !strings.HasPrefix(err.Error(), tt.fail) || !errors.As(err, &usageError{}) {
				t.Errorf("%s: error %v, want %q; %q is no result", name, err, tt.fail, out.String())
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range newRoot().Commands() {
			if c.IsAvailableCommand() && (!strings.Contains(out.String(), c.Name()) || !strings.Contains(out.String(), c.Short)) {
				t.Errorf("%s: usage does not name %s:\n%s", name, c.Name(), out.String())
			}
		}
	}
}

func TestRun_InvalidArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	absent := filepath.Join(t.TempDir(), "absent")
	node := []string{"node", "--node-name", "a", "--address", "192.0.2.1", "--insecure-migration"}
	for name, tt := range map[string]struct {
		args  []string
		says  []string
		usage bool
	}{
		"unknown flag":       {[]string{"controller", "--nonsense"}, []string{"controller: unknown flag: --nonsense; see refdaemon controller -h"}, true},
		"wrong value":        {[]string{"controller", "--migrations-lent", "many"}, []string{"--migrations-lent", "many", "write a whole number"}, true},
		"surplus argument":   {[]string{"controller", "surplus"}, []string{`controller: unexpected argument "surplus"`}, true},
		"negative time":      {[]string{"controller", "--node-silent-after", "-1s"}, []string{"--node-silent-after", "-1s"}, true},
		"nothing of a node":  {[]string{"node"}, []string{"node: --node-name is required", "\n--address is required", "\n--migration-cert is required"}, true},
		"no address":         {append(node[:3:3], "--address", "192.0.2.1:1"), []string{`--address "192.0.2.1:1" is not an IP address`}, true},
		"no kubeconfig":      {[]string{"controller"}, []string{"controller", "set --kubeconfig"}, false},
		"absent kubeconfig":  {append(node, "--kubeconfig", absent), []string{"node", absent}, false},
		"no trace file":      {[]string{"controller", "--trace-file", filepath.Join(absent, "trace")}, []string{"controller", "trace file", absent}, false},
		"absent file":        {[]string{"controller", "--config", absent}, []string{"controller: read the configuration", absent, "specify a readable file"}, false},
		"no daemon":          {[]string{"config", "print-defaults", "launcher"}, []string{"config print-defaults: specify one daemon"}, true},
		"no file to check":   {[]string{"config", "validate"}, []string{"config validate: specify one file; got 0"}, true},
		"absent one":         {[]string{"config", "validate", absent}, []string{absent}, false},
		"version as XML":     {[]string{"version", "-o", "xml"}, []string{"version: -o xml is unknown; use text or json"}, true},
		"help of no command": {[]string{"controller", "--help=maybe"}, []string{"--help"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), tt.args, &out)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if errors.As(err, &usageError{}) != tt.usage {
				t.Errorf("of the arguments: %t", !tt.usage)
			}
			if out.Len() > 0 {
				t.Errorf("%q is no result", out.String())
			}
		})
	}
}

// all are a command and those below it.
func all(c *cobra.Command) []*cobra.Command {
	found := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		found = append(found, all(sub)...)
	}
	return found
}

func TestHelp_ExamplesParse(t *testing.T) {
	t.Chdir("..") // where the files are that examples name
	for _, c := range all(newRoot()) {
		if c.Name() == "help" || strings.HasPrefix(c.CommandPath(), "refdaemon completion") {
			continue // cobra's
		}
		path := strings.Fields(c.CommandPath())[1:]
		var out bytes.Buffer
		if err := run(t.Context(), append(path, "-h"), &out); err != nil {
			t.Errorf("%s: %v", c.CommandPath(), err)
		}
		for _, want := range []string{c.Long, "Examples:\n" + c.Example} {
			if strings.TrimSpace(want) == "" || !strings.Contains(out.String(), strings.TrimRight(want, "\n")) {
				t.Errorf("%s: help lacks %q:\n%s", c.CommandPath(), want, out.String())
			}
		}
		examples := 0
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", "")) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
				continue
			}
			examples++
			for part := range strings.SplitSeq(line, " | ") {
				if args, ours := strings.CutPrefix(strings.TrimSpace(part), "refdaemon "); ours {
					args, _, _ = strings.Cut(args, " > ")
					parses(t, strings.Fields(args))
				}
			}
		}
		if examples == 0 || strings.Count(c.Example, "refdaemon "+strings.Join(path, " ")) == 0 {
			t.Errorf("%s has no example of itself:\n%s", c.CommandPath(), c.Example)
		}
	}
}

// parses fails unless the arguments are sound, up to where a command would begin to do something.
func parses(t *testing.T, args []string) {
	t.Helper()
	root := newRoot()
	cmd, rest, err := root.Find(doubled(root, args))
	if err != nil {
		t.Errorf("%q: %v", args, err)
		return
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%q: %v", args, err)
		return
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%q: %v", args, err)
	}
	if cmd.PreRunE == nil {
		return
	}
	if err := cmd.PreRunE(cmd, cmd.Flags().Args()); err != nil {
		t.Errorf("%q: %v", args, err)
	}
}

func TestFlags_SingleDash(t *testing.T) {
	for name, tt := range map[string]struct{ args, want string }{
		"long ones":           {"render -raw -image=mine --explain x launcher", "render --raw --image=mine --explain x launcher"},
		"letters":             {"render --f x -f y -o json --o=json", "render -f x -f y -o json -o=json"},
		"what is unknown":     {"render -rax --ra", "render -rax --ra"},
		"after the last flag": {"render -- -raw", "render -- -raw"},
		"no command":          {"-raw render", "-raw render"},
		"a daemon":            {"launcher -name a -uid b -v", "launcher --name a --uid b -v"},
	} {
		if got := strings.Join(doubled(newRoot(), strings.Fields(tt.args)), " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestScheme_AllKinds(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, gvk := range []schema.GroupVersionKind{
		v1.GroupVersion.WithKind("VirtualMachineInstance"),
		v1.GroupVersion.WithKind("VirtualMachineInstanceMigration"),
		v1.GroupVersion.WithKind("KubeVirt"),
		migrationsv1.SchemeGroupVersion.WithKind("MigrationPolicy"),
		corev1.SchemeGroupVersion.WithKind("Pod"),
		corev1.SchemeGroupVersion.WithKind("Node"),
		corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
		corev1.SchemeGroupVersion.WithKind("ResourceQuota"),
	} {
		if !s.Recognizes(gvk) {
			t.Errorf("%s is unknown", gvk)
		}
	}
}

func TestMemoryHypervisor_WithoutLibvirt(t *testing.T) {
	hv, err := (&node{config: &configfile.NodeConfiguration{NodeName: "node-a", Hypervisor: configfile.MemoryScheme}}).open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := hv.(io.Closer); ok {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
