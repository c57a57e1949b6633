// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/durable"
)

const (
	recordVersion = 1
	// maxRecord bounds a record: nobody has that many disks.
	maxRecord = 1 << 20
)

// Place is where something was mounted, or made, for a guest.
type Place struct {
	// Folder is that of a Pod: uid/volumes/kubernetes.io~empty-dir/hotplug-disks below
	// the kubelet's, or, in another namespace, from the root of its process.
	Folder string `json:"folder"`
	// Name is that of the file in it.
	Name string `json:"name"`
	// Namespace is the number of the mount namespace it is in; zero for the agent's.
	Namespace uint64 `json:"namespace,omitempty"`
}

// record is the file of one guest.
type record struct {
	Version int       `json:"version"`
	Guest   types.UID `json:"guest"`
	Places  []Place   `json:"places"`
}

// records are those of all guests, a file each.
type records struct{ dir string }

// fitUID are UIDs that may be part of a path.
var fitUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

func checkUID(what string, uid types.UID) error {
	if !fitUID.MatchString(string(uid)) {
		return fmt.Errorf("%s %.80q is no UID: %w", what, uid, domain.ErrInvalid)
	}
	return nil
}

func (r records) path(uid types.UID) string { return filepath.Join(r.dir, string(uid)+".json") }

// read returns the places of a guest; none if nothing is written.
func (r records) read(uid types.UID) ([]Place, error) {
	if err := checkUID("guest", uid); err != nil {
		return nil, err
	}
	f, err := os.Open(r.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, err
	}
	var out record
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, r.damaged(uid, err)
	}
	if out.Version != recordVersion || out.Guest != uid {
		return nil, r.damaged(uid, fmt.Errorf("version %d of guest %q", out.Version, out.Guest))
	}
	for _, p := range out.Places {
		if err := errors.Join(checkPath(p.Folder), checkName(p.Name)); err != nil {
			return nil, r.damaged(uid, err)
		}
	}
	return out.Places, nil
}

func (r records) damaged(uid types.UID, err error) error {
	return fmt.Errorf("mounts: record %s cannot be read; unmount what the guest has and remove it: %w", r.path(uid), err)
}

// add writes a place down, and returns when that outlasts a crash.
func (r records) add(uid types.UID, p Place) error {
	places, err := r.read(uid)
	if err != nil || slices.Contains(places, p) {
		return err
	}
	return r.write(uid, append(places, p))
}

// drop forgets a place.
func (r records) drop(uid types.UID, p Place) error {
	places, err := r.read(uid)
	if err != nil || !slices.Contains(places, p) {
		return err
	}
	return r.write(uid, slices.DeleteFunc(places, func(o Place) bool { return o == p }))
}

// write replaces the record as a whole; one without places is removed.
func (r records) write(uid types.UID, places []Place) error {
	if len(places) == 0 {
		return durable.Remove(r.path(uid))
	}
	return durable.WriteJSON(r.path(uid), record{Version: recordVersion, Guest: uid, Places: places})
}
