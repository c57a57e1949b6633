// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// nodes are the device nodes of a plugin while they are watched.
type nodes struct {
	watcher *fsnotify.Watcher
	root    string
	paths   []string
}

// look reports whether all device nodes exist. From then on the watcher reports every change that
// can affect the result.
func (n nodes) look() (bool, error) {
	for _, path := range n.paths {
		if err := n.watch(filepath.Join(n.root, path)); err != nil {
			return false, err
		}
	}
	for _, path := range n.paths {
		// Follow symbolic links: they are valid names of devices.
		if st, err := os.Stat(filepath.Join(n.root, path)); err != nil || st.Mode()&fs.ModeDevice == 0 {
			return false, nil //nolint:nilerr // a node that cannot be inspected is unusable for guests
		}
	}
	return true, nil
}

// watch adds the deepest existing directory of the path to the watcher, and repeats that for
// directories that are created meanwhile.
func (n nodes) watch(path string) error {
	for folder := deepest(filepath.Dir(path)); ; {
		err := n.watcher.Add(folder)
		now := deepest(filepath.Dir(path))
		switch {
		case now != folder:
			folder = now
		case err != nil:
			return fmt.Errorf("deviceplugin: watching %s: %w", folder, err)
		default:
			return nil
		}
	}
}

// deepest returns path or its nearest existing parent directory.
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
			return fmt.Errorf("deviceplugin: opening the device: %w", err)
		}
		f.Close()
	}
	return nil
}
