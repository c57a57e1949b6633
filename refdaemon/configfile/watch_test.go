// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

type controllerConfig = *configfile.ControllerConfiguration

// watched is a file that is watched, and what becomes of it.
type watched struct {
	*configfile.Watcher[controllerConfig]
	clock   *clocktesting.FakeClock
	applied chan controllerConfig

	mu  sync.Mutex
	log []string
}

// watch begins to watch a file with a content, whose flags are given, too.
func watch(t *testing.T, file, content string, given ...configfile.Setting) *watched {
	t.Helper()
	swap(t, file, content)
	s := configfile.Source[controllerConfig]{New: configfile.NewController, File: file, Given: given}
	running, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), applied: make(chan controllerConfig, 10)}
	w.Watcher = &configfile.Watcher[controllerConfig]{
		Source: s, Running: running, Metrics: configfile.NewReloads(), Clock: w.clock,
		Log: funcr.New(func(_, args string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.log = append(w.log, args)
		}, funcr.Options{}),
		Apply: func(_ context.Context, next controllerConfig) error {
			w.applied <- next
			return nil
		},
	}
	return w
}

// swap puts a content into a file, all at once.
func swap(t *testing.T, file, content string) {
	t.Helper()
	next := file + ".next"
	err := errors.Join(os.WriteFile(next, []byte(ofController+content), 0o600), os.Rename(next, file))
	if err != nil {
		t.Fatal(err)
	}
}

// logged returns the log lines since its last call.
func (w *watched) logged() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.log
	w.log = nil
	return lines
}

// metrics are their values, in the order of their names.
func (w *watched) metrics(t *testing.T) (good, at, restart float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(w.Metrics); err != nil {
		t.Fatal(err)
	}
	all, err := registry.Gather()
	if err != nil || len(all) != 3 {
		t.Fatalf("error %v, metrics %v", err, all)
	}
	value := func(name string) float64 {
		for _, m := range all {
			if m.GetName() == "virtloom_config_"+name {
				return m.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatalf("there is no %s", name)
		return 0
	}
	return value("last_reload_successful"), value("last_reload_success_timestamp_seconds"), value("restart_required")
}

func TestWatcher_File(t *testing.T) {
	const before = "migrations: {inboundPerNode: 3}"
	for name, tt := range map[string]struct {
		next    string
		given   []configfile.Setting
		applies bool
		says    []string // of what is logged, a line each
		good    float64
		restart float64
	}{
		"nothing":               {next: before, good: 1},
		"a comment":             {next: before + " # three", good: 1},
		"what takes effect":     {next: "migrations: {inboundPerNode: 4}\nlog: {verbosity: 1}", applies: true, good: 1, says: []string{`"fields"=["log.verbosity" "migrations.inboundPerNode"]`}},
		"what has to wait":      {next: before + "\nlauncherImage: a", good: 1, restart: 1, says: []string{`requires a restart" "file"="FILE" "fields"=["launcherImage"]`}},
		"both":                  {next: "health: {address: ':1'}", applies: true, good: 1, restart: 1, says: []string{`"fields"=["migrations.inboundPerNode"]`, `"fields"=["health.address"]`}},
		"what cannot be":        {next: "migrations: {inboundPerNode: 0}\nlog: {verbosity: 1}", says: []string{"FILE:3: migrations.inboundPerNode: 0 must be 1 or more"}},
		"what cannot be read":   {next: "migrations: [", says: []string{"is not YAML"}},
		"another kind":          {next: "kind: NodeConfiguration", says: []string{"kind: is a duplicate"}},
		"what a flag has given": {next: "migrations: {inboundPerNode: 4}", given: []configfile.Setting{{Flag: "migrations-inbound-per-node", Text: "7"}}, good: 1},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			w := watch(t, file, before, tt.given...)
			w.Look(t.Context())
			w.clock.SetTime(time.Unix(2000, 0))
			swap(t, file, tt.next)
			for range 2 { // each change is logged once
				w.Look(t.Context())
			}
			if applied := len(w.applied) == 1; applied != tt.applies || len(w.applied) > 1 {
				t.Errorf("put into force %d times", len(w.applied))
			}
			lines := w.logged()
			if len(lines) != len(tt.says) {
				t.Fatalf("logged %q, want %q", lines, tt.says)
			}
			for i, want := range tt.says {
				if !strings.Contains(strings.ReplaceAll(lines[i], file, "FILE"), want) {
					t.Errorf("logged %s, want %s", lines[i], want)
				}
			}
			good, at, restart := w.metrics(t)
			if good != tt.good || restart != tt.restart || tt.good == 0 && at != 1000 {
				t.Errorf("metrics are %v, %v, %v", good, at, restart)
			}
		})
	}
}

func TestWatcher_RepairedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	w := watch(t, file, "launcherImage: a")
	w.Look(t.Context())
	steps := []struct {
		name, content string // no file if it is empty
		good          float64
		restart       float64
		says          string
		applied       int
	}{
		{"broken", "launcherImage: [", 0, 0, "is not YAML", 0},
		{"gone", "", 0, 0, "no such file", 0},
		{"back", "launcherImage: a", 1, 0, "valid again", 0},
		{"waits", "launcherImage: b", 1, 1, "requires a restart", 0},
		{"waits no more", "launcherImage: a", 1, 0, "no longer requires a restart", 0},
		{"takes effect", "launcherImage: a\nlog: {verbosity: 2}", 1, 0, "log.verbosity", 1},
		{"and goes back", "launcherImage: a", 1, 0, "log.verbosity", 2},
	}
	for _, s := range steps {
		if s.content == "" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		} else {
			swap(t, file, s.content)
		}
		w.Look(t.Context())
		lines := w.logged()
		if good, _, restart := w.metrics(t); good != s.good || restart != s.restart || len(lines) != 1 || !strings.Contains(lines[0], s.says) || len(w.applied) != s.applied {
			t.Errorf("%s: metrics are %v and %v, put into force %d times, logged %q", s.name, good, restart, len(w.applied), lines)
		}
	}
}

func TestWatcher_RetriesApply(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	w := watch(t, file, "")
	fails := errors.New("not now")
	w.Apply = func(context.Context, controllerConfig) error { return fails }
	swap(t, file, "log: {verbosity: 2}")
	w.Look(t.Context())
	w.Look(t.Context())
	if good, _, _ := w.metrics(t); good != 0 {
		t.Error("it counts as in force")
	}
	fails = nil
	w.Look(t.Context())
	if good, _, _ := w.metrics(t); good != 1 {
		t.Error("it does not count as in force")
	}
	if lines := w.logged(); len(lines) != 3 || !strings.Contains(lines[0], "not now") || !strings.Contains(lines[1], "log.verbosity") {
		t.Errorf("logged %q", lines)
	}
}

// TestWatcher_ConfigMap swaps a symbolic link to a folder, as kubelets do.
func TestWatcher_ConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, content string) {
		t.Helper()
		link := filepath.Join(dir, "..data")
		err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o700),
			os.WriteFile(filepath.Join(dir, name, "c.yaml"), []byte(ofController+content), 0o600),
			os.Symlink(name, link+"_tmp"), os.Rename(link+"_tmp", link))
		if err != nil {
			t.Fatal(err)
		}
	}
	version("1", "")
	file := filepath.Join(dir, "c.yaml")
	if err := os.Symlink("..data/c.yaml", file); err != nil {
		t.Fatal(err)
	}
	w := watch(t, filepath.Join(t.TempDir(), "other"), "")
	w.Source.File = file
	if w.NeedLeaderElection() {
		t.Error("who stands by does not follow its file")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	version("2", "migrations: {inboundPerNode: 9}")
	// A tick that comes before the ticker is there is lost.
	for next := (controllerConfig)(nil); next == nil; {
		if w.clock.HasWaiters() {
			w.clock.Step(configfile.DefaultEvery)
		}
		select {
		case next = <-w.applied:
			if next.Migrations.InboundPerNode != 9 {
				t.Errorf("put into force: %+v", next.Migrations)
			}
		case <-t.Context().Done():
			t.Fatal("nothing was put into force")
		default:
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if good, _, _ := w.metrics(t); good != 1 {
		t.Error("it does not count as in force")
	}
}

func TestWatcher_NoFile(t *testing.T) {
	w := configfile.Watcher[controllerConfig]{Running: configfile.NewController()}
	if err := w.Start(t.Context()); err != nil {
		t.Error(err)
	}
}
