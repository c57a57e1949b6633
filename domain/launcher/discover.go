// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"
)

// scanEvery is the interval of scans of all Pods of a node without a cause.
const scanEvery = 10 * time.Second

// Run discovers launchers until ctx ends: at once when the Pods' folders change, and periodically.
func (c *Connector) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("launcher: watch %s: %w", c.root(), err)
	}
	defer func() { _ = watcher.Close() }() // nothing was written
	var ticks clock.WithTicker = clock.RealClock{}
	if c.Clock != nil {
		ticks = c.Clock
	}
	tick := ticks.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		c.watch(watcher)
		if err := c.Discover(ctx); err != nil && ctx.Err() == nil {
			c.logger().Error(err, "Discovering launchers failed, retrying")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case <-watcher.Events:
		case err := <-watcher.Errors:
			c.logger().Error(err, "Watching the Pods' folders failed, waiting for the next scan")
		}
	}
}

// watch adds the existing folders on the way to each Pod's socket. A watched folder is not added
// again.
func (c *Connector) watch(w *fsnotify.Watcher) {
	_ = w.Add(c.root()) // the next scan reports it
	entries, _ := os.ReadDir(c.root())
	for _, e := range entries {
		at := e.Name()
		for _, part := range append([]string{""}, strings.Split(socketFolder, string(filepath.Separator))...) {
			at = filepath.Join(at, part)
			f, err := openBelow(c.root(), at)
			if err != nil {
				break
			}
			_ = f.Close()
			if w.Add(filepath.Join(c.root(), at)) != nil {
				break
			}
		}
	}
}
