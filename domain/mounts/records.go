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
	// maxRecord is the maximum size of a record, far above that of any VMI.
	maxRecord = 1 << 20
)

// place is a mount, or a device node, that was made for a VMI.
type place struct {
	// Folder is a directory of a Pod: uid/volumes/kubernetes.io~empty-dir/hotplug-disks below the
	// kubelet's directory or, in another namespace, relative to the root of its process.
	Folder string `json:"folder"`
	// Name is the name of the file in it.
	Name string `json:"name"`
	// Namespace is the number of its mount namespace; zero for that of the agent.
	Namespace uint64 `json:"namespace,omitempty"`
}

// record is the record of one VMI.
type record struct {
	Version int       `json:"version"`
	Guest   types.UID `json:"guest"`
	Places  []place   `json:"places"`
}

// records are the records of all VMIs, one file each.
type records struct{ dir string }

// fitUID matches UIDs that can be part of a path.
var fitUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

func checkUID(what string, uid types.UID) error {
	if !fitUID.MatchString(string(uid)) {
		return fmt.Errorf("%s: invalid UID %.80q: %w", what, uid, domain.ErrInvalid)
	}
	return nil
}

func (r records) path(uid types.UID) string { return filepath.Join(r.dir, string(uid)+".json") }

// read returns the places of a VMI, none without a record.
func (r records) read(uid types.UID) ([]place, error) {
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
	return fmt.Errorf("mounts: record %s is damaged; unmount the disks of the VMI and remove the record: %w", r.path(uid), err)
}

// add records a place durably.
func (r records) add(uid types.UID, p place) error {
	places, err := r.read(uid)
	if err != nil || slices.Contains(places, p) {
		return err
	}
	return r.write(uid, append(places, p))
}

// drop removes a place from the record.
func (r records) drop(uid types.UID, p place) error {
	places, err := r.read(uid)
	if err != nil || !slices.Contains(places, p) {
		return err
	}
	return r.write(uid, slices.DeleteFunc(places, func(o place) bool { return o == p }))
}

// write replaces the record atomically, or removes it if it has no places.
func (r records) write(uid types.UID, places []place) error {
	if len(places) == 0 {
		return durable.Remove(r.path(uid))
	}
	return durable.WriteJSON(r.path(uid), record{Version: recordVersion, Guest: uid, Places: places})
}
