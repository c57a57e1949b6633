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

// DefaultEvery is how often a file is looked at. A kubelet brings a changed ConfigMap to a
// Pod within a minute or so.
const DefaultEvery = 5 * time.Second

// Watcher looks after the file of a daemon that runs, and puts into force what changes in
// it. Add it to a manager. What it knows is guarded by Start: nothing else may be called
// meanwhile.
type Watcher[C Configuration] struct {
	// Source is where the daemon's configuration has come from; without a file nothing is watched.
	Source Source[C]
	// Running is what the daemon has started with.
	Running C
	// Apply puts the fields into force that take effect at once, and no others. It is called when
	// any of them has changed, and again after Every if it fails.
	Apply func(ctx context.Context, next C) error
	// Log is told of each change, once.
	Log logr.Logger
	// Metrics tell of the last attempt. Defaults to none.
	Metrics *Reloads
	// Every is how often the file is looked at. Defaults to DefaultEvery.
	Every time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker

	begun   bool
	content []byte // of the last sound file
	applied C      // what is in force of what takes effect at once
	pending []string
	trouble string // what was logged last
}

// NeedLeaderElection is false: a replica that stands by follows its file, too.
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
	next, err := w.Source.From(content)
	if err != nil {
		w.fail(err)
		return
	}
	if err := w.apply(ctx, next); err != nil {
		w.fail(err)
		return
	}
	if w.trouble != "" {
		w.Log.Info("The configuration is sound again", "file", w.Source.File)
	}
	w.content, w.trouble = content, ""
	w.wait(next)
	w.Metrics.succeeded(w.Clock.Now(), len(w.pending))
}

// apply puts into force what can be.
func (w *Watcher[C]) apply(ctx context.Context, next C) error {
	fields := changed(w.applied, next, true)
	if len(fields) == 0 {
		return nil
	}
	if err := w.Apply(ctx, next); err != nil {
		return fmt.Errorf("put the configuration into force: %w", err)
	}
	w.applied = next
	w.Log.Info("The configuration has changed", "file", w.Source.File, "fields", fields)
	return nil
}

// wait tells what has to wait for the next start.
func (w *Watcher[C]) wait(next C) {
	fields := changed(w.Running, next, false)
	if slices.Equal(fields, w.pending) {
		return
	}
	w.pending = fields
	if len(fields) == 0 {
		w.Log.Info("The configuration asks for no restart any more", "file", w.Source.File)
		return
	}
	w.Log.Info("The configuration has changed where that takes effect at the next start only", "file", w.Source.File, "fields", fields)
}

// fail keeps the configuration in force, and tells why, once.
func (w *Watcher[C]) fail(err error) {
	w.Metrics.failed()
	if err.Error() == w.trouble {
		return
	}
	w.trouble = err.Error()
	w.Log.Error(err, "The configuration is not taken; the one before stays in force", "file", w.Source.File)
}

// changed are the fields that differ, of those that take effect at once or of the others.
func changed(old, next Configuration, live bool) []string {
	var fields []string
	for _, c := range Changes(old, next) {
		if c.Live == live {
			fields = append(fields, c.Field)
		}
	}
	return fields
}
