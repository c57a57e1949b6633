// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// nodes are the device nodes of a plugin while somebody watches them.
type nodes struct {
	watcher *fsnotify.Watcher
	root    string
	paths   []string
}

// look tells whether all device nodes are there. From then on the watcher reports
// whatever can change the answer.
func (n nodes) look() (bool, error) {
	for _, path := range n.paths {
		if err := n.watch(filepath.Join(n.root, path)); err != nil {
			return false, err
		}
	}
	for _, path := range n.paths {
		// A link is followed: devices are named by links, too.
		if st, err := os.Stat(filepath.Join(n.root, path)); err != nil || st.Mode()&fs.ModeDevice == 0 {
			return false, nil //nolint:nilerr // one that cannot be looked at is not there for guests either
		}
	}
	return true, nil
}

// watch makes the watcher look at the deepest folder of the path that exists; what
// appears while that is done is found by looking again.
func (n nodes) watch(path string) error {
	for folder := deepest(filepath.Dir(path)); ; {
		err := n.watcher.Add(folder)
		now := deepest(filepath.Dir(path))
		switch {
		case now != folder:
			folder = now
		case err != nil:
			return fmt.Errorf("deviceplugin: watch %s: %w", folder, err)
		default:
			return nil
		}
	}
}

// deepest is the path itself or the nearest folder above it that exists.
func deepest(path string) string {
	for path != "/" {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// load opens each device node once.
func (n nodes) load() error {
	for _, path := range n.paths {
		f, err := os.OpenFile(filepath.Join(n.root, path), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("deviceplugin: open the device: %w", err)
		}
		f.Close()
	}
	return nil
}
