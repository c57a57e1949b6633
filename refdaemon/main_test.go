// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain/libvirt"
)

func TestRunTellsHowItIsUsed(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		fail string
	}{
		"nothing":         {nil, ""},
		"help":            {[]string{"help"}, ""},
		"-h":              {[]string{"-h"}, ""},
		"--help":          {[]string{"--help"}, ""},
		"unknown command": {[]string{"nodes"}, `unknown command "nodes"`},
	} {
		var out bytes.Buffer
		err := run(t.Context(), tt.args, &out)
		told := out.String()
		if err != nil && tt.fail != "" {
			if told != "" {
				t.Errorf("%s: %q is no result", name, told)
			}
			told = err.Error()
		}
		if tt.fail == "" && err != nil || tt.fail != "" && !strings.HasPrefix(told, tt.fail) {
			t.Errorf("%s: error %v, want %q", name, err, tt.fail)
		}
		for _, c := range commands() {
			if !strings.Contains(told, c.name) || !strings.Contains(told, c.about) {
				t.Errorf("%s: usage does not tell of %s:\n%s", name, c.name, told)
			}
		}
	}
}

// parse gives the arguments to a daemon's flags without running it.
func parse(t *testing.T, p *process, register func(*flag.FlagSet), args ...string) (*flag.FlagSet, string, error) {
	t.Helper()
	var out bytes.Buffer
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(&out)
	p.flags(fs)
	register(fs)
	err := p.run(t.Context(), fs, args, func(context.Context, manager.Manager) error {
		t.Error("a daemon was about to run")
		return nil
	})
	return fs, out.String(), err
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	absent := filepath.Join(t.TempDir(), "absent")
	for name, tt := range map[string]struct {
		args []string
		says []string
	}{
		"unknown flag":     {[]string{"--nonsense"}, []string{"nonsense"}},
		"wrong value":      {[]string{"--port", "many"}, []string{"port", "many"}},
		"surplus argument": {[]string{"surplus"}, []string{"test", "unexpected argument", "surplus"}},
		"no kubeconfig":    {nil, []string{"test", "give --kubeconfig"}},
		"absent file":      {[]string{"--kubeconfig", absent}, []string{"test", absent}},
		"no trace file":    {[]string{"--trace-file", filepath.Join(absent, "trace")}, []string{"test", "trace file", absent}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &process{name: "test"}
			_, _, err := parse(t, p, func(fs *flag.FlagSet) { fs.Int("port", 0, "a `port`") }, tt.args...)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestHelpOfACommandIsNoFailure(t *testing.T) {
	p := &process{name: "test"}
	fs, out, err := parse(t, p, func(*flag.FlagSet) {}, "-h")
	if !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error %v, want flag.ErrHelp", err)
	}
	fs.VisitAll(func(f *flag.Flag) {
		if !strings.Contains(out, "-"+f.Name) {
			t.Errorf("flag %s is not listed:\n%s", f.Name, out)
		}
	})
}

// plainMigration is what a node says about migrations that has no certificates.
var plainMigration = migrationOptions{insecure: true, dir: libvirt.DefaultMigrationDir}

func TestANodeNeedsNameAndAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		o       nodeOptions
		missing []string
	}{
		"neither": {nodeOptions{}, []string{"--node-name", "--address"}},
		"name":    {nodeOptions{address: "192.0.2.1"}, []string{"--node-name"}},
		"address": {nodeOptions{node: "node-a"}, []string{"--address"}},
	} {
		tt.o.migration = plainMigration
		err := tt.o.check()
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, f := range []string{"--node-name", "--address"} {
			if want := strings.Contains(strings.Join(tt.missing, " "), f); strings.Contains(err.Error(), f) != want {
				t.Errorf("%s: error %q names %s: %v, want %v", name, err, f, !want, want)
			}
		}
	}
	if err := (&nodeOptions{node: "node-a", address: "192.0.2.1", migration: plainMigration}).check(); err != nil {
		t.Error(err)
	}
	// Told before the daemon looks for a cluster.
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if err := run(t.Context(), []string{"node"}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), "node: --node-name is required") {
		t.Errorf("error %v", err)
	}
}

func TestNodesKnowEachOtherByCertificates(t *testing.T) {
	const dir = libvirt.DefaultMigrationDir
	for name, tt := range map[string]struct {
		o    migrationOptions
		says []string
	}{
		"all three":         {migrationOptions{cert: "c", key: "k", ca: "a", dir: dir}, nil},
		"none, and asked":   {migrationOptions{insecure: true, dir: dir}, nil},
		"none":              {migrationOptions{dir: dir}, []string{"--migration-cert, --migration-key and --migration-ca are required", "--insecure-migration"}},
		"no authority":      {migrationOptions{cert: "c", key: "k", dir: dir}, []string{"--migration-ca"}},
		"no key":            {migrationOptions{cert: "c", ca: "a", dir: dir}, []string{"--migration-key"}},
		"both":              {migrationOptions{cert: "c", key: "k", ca: "a", insecure: true, dir: dir}, []string{"--insecure-migration", "leave out"}},
		"relative folder":   {migrationOptions{insecure: true, dir: "migrations"}, []string{"--migration-dir", "migrations"}},
		"folder of no room": {migrationOptions{insecure: true, dir: "/" + strings.Repeat("a", 50)}, []string{"--migration-dir", "50 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.o.check()
			if (err == nil) != (tt.says == nil) {
				t.Fatalf("error %v", err)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestATimeMustNotBeNegative(t *testing.T) {
	for command, flag := range map[string]string{"controller": "--node-silent-after", "node": "--heartbeat"} {
		err := run(t.Context(), []string{command, flag, "-1s"}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s %s: error %v, want one that names the flag", command, flag, err)
		}
	}
}

func TestAnAddressMustBeOne(t *testing.T) {
	for _, address := range []string{"node-a.example.test", "192.0.2.1:16509"} {
		err := (&nodeOptions{node: "node-a", address: address, migration: plainMigration}).check()
		if err == nil || !strings.Contains(err.Error(), "--address") {
			t.Errorf("address %s: error %v, want one that names the flag", address, err)
		}
	}
}

func TestTheSchemeKnowsEveryKindInUse(t *testing.T) {
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

func TestTheMemoryHypervisorNeedsNoLibvirt(t *testing.T) {
	hv, err := (&nodeOptions{node: "node-a", hypervisor: memoryScheme}).open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := hv.(io.Closer); ok {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
