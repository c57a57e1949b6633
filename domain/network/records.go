// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/durable"
)

const recordVersion = 1

// made is the recorded setup of a network.
type made struct {
	// Tap is the name of the tap device; empty if the hypervisor creates it.
	Tap string `json:"tap,omitempty"`
	// MTU is that of the bridge when the tap device was created.
	MTU uint `json:"mtu,omitempty"`
	// Finished says that the setup is complete. Every network with a record has been begun.
	Finished bool `json:"finished"`
}

// record is the record of one VMI.
type record struct {
	Version  int             `json:"version"`
	Guest    types.UID       `json:"guest"`
	Networks map[string]made `json:"networks"`
}

// records are the records of all VMIs, one file each.
type records struct{ dir string }

// fitUID matches UIDs that can be a file name.
var fitUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

func checkUID(uid types.UID) error {
	if fitUID.MatchString(string(uid)) {
		return nil
	}
	return fmt.Errorf("network: invalid UID %.80q: %w", uid, domain.ErrInvalid)
}

func (r records) path(uid types.UID) string { return filepath.Join(r.dir, string(uid)+".json") }

// read returns the record of a VMI, an empty one if there is none.
func (r records) read(uid types.UID) (record, error) {
	out := record{Version: recordVersion, Guest: uid, Networks: map[string]made{}}
	data, err := os.ReadFile(r.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err == nil && (out.Version != recordVersion || out.Guest != uid || out.Networks == nil) {
		err = fmt.Errorf("version %d of guest %q", out.Version, out.Guest)
	}
	if err != nil {
		return record{}, fmt.Errorf("network: record %s is damaged; remove the tap devices of the VMI and the record: %w", r.path(uid), err)
	}
	return out, nil
}

// write replaces the record atomically, or removes it if it has no networks.
func (r records) write(out record) error {
	if len(out.Networks) == 0 {
		return durable.Remove(r.path(out.Guest))
	}
	return durable.WriteJSON(r.path(out.Guest), out)
}
