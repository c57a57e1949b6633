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
}

// look returns the device nodes that do not exist. From then on the watcher reports every change
// that can affect the result.
func (n nodes) look(paths []string) (missing map[string]bool, err error) {
	for _, path := range paths {
		if err := n.watch(filepath.Join(n.root, path)); err != nil {
			return nil, err
		}
	}
	missing = map[string]bool{}
	for _, path := range paths {
		// Follow symbolic links: they are valid names of devices. A node that cannot be inspected
		// is unusable for guests.
		if st, err := os.Stat(filepath.Join(n.root, path)); err != nil || st.Mode()&fs.ModeDevice == 0 {
			missing[path] = true
		}
	}
	return missing, nil
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
func (n nodes) load(paths []string) error {
	for _, path := range paths {
		f, err := os.OpenFile(filepath.Join(n.root, path), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("deviceplugin: opening the device: %w", err)
		}
		f.Close()
	}
	return nil
}
