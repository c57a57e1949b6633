// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// DefaultEvery is the interval at which a file is polled. A kubelet updates a mounted
// ConfigMap within a minute or so.
const DefaultEvery = 5 * time.Second

// Watcher watches the file of a running daemon, and applies its changes. Add it to a
// manager. It is not safe for concurrent use: while Start runs, no other method may be
// called.
type Watcher[C Configuration] struct {
	// Source is the origin of the daemon's configuration; without a file nothing is watched.
	Source Source[C]
	// Running is the configuration that the daemon started with.
	Running C
	// Apply applies the fields that take effect at once, and no others. It is called when any of
	// them has changed, and again after Every if it fails.
	Apply func(ctx context.Context, next C) error
	// Log records each change once.
	Log logr.Logger
	// Metrics record the last attempt. Defaults to none.
	Metrics *Reloads
	// Every is the interval at which the file is polled. Defaults to DefaultEvery.
	Every time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker

	begun   bool
	content []byte // of the last valid file
	applied C      // the live fields in force
	pending []string
	trouble string // the error that was logged last
}

// NeedLeaderElection returns false: a standby replica watches its file, too.
func (*Watcher[C]) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (w *Watcher[C]) Start(ctx context.Context) error {
	if w.Source.File == "" {
		return nil
	}
	w.begin()
	t := w.Clock.NewTicker(w.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C():
			w.Look(ctx)
		}
	}
}

func (w *Watcher[C]) begin() {
	if w.begun {
		return
	}
	w.begun, w.applied = true, w.Running
	if w.Clock == nil {
		w.Clock = clock.RealClock{}
	}
	if w.Every <= 0 {
		w.Every = DefaultEvery
	}
	w.Metrics.succeeded(w.Clock.Now(), 0)
}

// Look reads the file once.
func (w *Watcher[C]) Look(ctx context.Context) {
	w.begin()
	content, err := os.ReadFile(w.Source.File)
	if err != nil {
		w.fail(fmt.Errorf("read the configuration: %w", err))
		return
	}
	if w.trouble == "" && w.content != nil && bytes.Equal(content, w.content) {
		return
	}
	next, err := w.Source.from(content)
	if err != nil {
		w.fail(err)
		return
	}
	if err := w.apply(ctx, next); err != nil {
		w.fail(err)
		return
	}
	if w.trouble != "" {
		w.Log.Info("Configuration is valid again", "file", w.Source.File)
	}
	w.content, w.trouble = content, ""
	w.wait(next)
	w.Metrics.succeeded(w.Clock.Now(), len(w.pending))
}

// apply applies the changed live fields.
func (w *Watcher[C]) apply(ctx context.Context, next C) error {
	fields := changed(w.applied, next, true)
	if len(fields) == 0 {
		return nil
	}
	if err := w.Apply(ctx, next); err != nil {
		return fmt.Errorf("apply the configuration: %w", err)
	}
	w.applied = next
	w.Log.Info("Configuration changed", "file", w.Source.File, "fields", fields)
	return nil
}

// wait records the changes that require a restart.
func (w *Watcher[C]) wait(next C) {
	fields := changed(w.Running, next, false)
	if slices.Equal(fields, w.pending) {
		return
	}
	w.pending = fields
	if len(fields) == 0 {
		w.Log.Info("Configuration no longer requires a restart", "file", w.Source.File)
		return
	}
	w.Log.Info("Configuration change requires a restart", "file", w.Source.File, "fields", fields)
}

// fail keeps the configuration in force, and logs the error once.
func (w *Watcher[C]) fail(err error) {
	w.Metrics.failed()
	if err.Error() == w.trouble {
		return
	}
	w.trouble = err.Error()
	w.Log.Error(err, "Invalid configuration, keeping the previous one", "file", w.Source.File)
}

// changed returns the fields that differ, either the live or all other ones.
func changed(old, next Configuration, live bool) []string {
	var fields []string
	for _, c := range Changes(old, next) {
		if c.Live == live {
			fields = append(fields, c.Field)
		}
	}
	return fields
}
