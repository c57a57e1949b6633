// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// ownersDir is the folder below Root that records the VMIs with files on the node: one small file
// for each VMI, created before its first other file and removed after the last.
const ownersDir = "owners"

// ownerSuffix is the suffix of complete files there.
const ownerSuffix = ".json"

// owners remembers across restarts which VMIs have files on the node, so that those of VMIs deleted
// meanwhile are found.
type owners struct {
	mu    sync.Mutex
	known map[types.UID]types.NamespacedName // nil until read
}

// owner is the content of a file.
type owner struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// note stores that the VMI is about to have files.
func (o *owners) note(root string, vmi *v1.VirtualMachineInstance) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.lockedRead(root); err != nil {
		return err
	}
	key := types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name}
	if o.known[vmi.UID] == key {
		return nil
	}
	path := ownerFile(root, vmi.UID)
	b, err := json.Marshal(owner{Namespace: vmi.Namespace, Name: vmi.Name})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("workspace: record the files of VMI %s in the state directory: %w", key, err)
	}
	o.known[vmi.UID] = key
	return nil
}

// forget stores that the VMI has no files any more.
func (o *owners) forget(root string, uid types.UID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := os.Remove(ownerFile(root, uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("workspace: remove the record of VMI %s: %w", uid, err)
	}
	delete(o.known, uid)
	return nil
}

// all returns a copy of the recorded VMIs.
func (o *owners) all(root string) (map[types.UID]types.NamespacedName, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.lockedRead(root); err != nil {
		return nil, err
	}
	return maps.Clone(o.known), nil
}

// lockedRead reads the folder once; what is not a complete file is skipped.
func (o *owners) lockedRead(root string) error {
	if o.known != nil {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(root, ownersDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("workspace: read the records of VMIs with files: %w", err)
	}
	known := map[types.UID]types.NamespacedName{}
	for _, e := range entries {
		name, complete := strings.CutSuffix(e.Name(), ownerSuffix)
		if !complete || checkUID(types.UID(name)) != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, ownersDir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // an agent that is about to end has removed it meanwhile
		}
		if err != nil {
			return fmt.Errorf("workspace: read the records of VMIs with files: %w", err)
		}
		var is owner
		if json.Unmarshal(b, &is) != nil || is.Name == "" {
			continue
		}
		known[types.UID(name)] = types.NamespacedName{Namespace: is.Namespace, Name: is.Name}
	}
	o.known = known
	return nil
}

func ownerFile(root string, uid types.UID) string {
	return filepath.Join(root, ownersDir, string(uid)+ownerSuffix)
}
