// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// CIDs below 3 are reserved for the hypervisor, loopback and the host; the highest number is
// the wildcard.
const (
	firstCID = 3
	lastCID  = math.MaxUint32 - 1
)

// ErrNoCID means that every VSOCK CID is in use.
var ErrNoCID = errors.New("every VSOCK CID is in use; delete VirtualMachineInstances with autoattachVSOCK")

// CIDAllocator assigns VSOCK context identifiers (status.VSOCKCID); no two VMIs of the
// cluster have the same one. Implementations must be safe for concurrent use. The default
// is [CIDs]. (specs: VMI reconciliation 6)
type CIDAllocator interface {
	// Sync records the CIDs of stored VMIs. It must be called with all of them before
	// the first Allocate; repeated calls are harmless and remove nothing.
	Sync(vmis []v1.VirtualMachineInstance)
	// Allocate returns the CID of a VMI, the same one until Release.
	Allocate(key types.NamespacedName) (uint32, error)
	// Release releases the CID of a deleted VMI. A VMI without one is ignored.
	Release(key types.NamespacedName)
}

// CIDs is a CIDAllocator that keeps its state in memory. After a restart Sync restores it: the
// CID of a VMI counts once it is stored.
type CIDs struct {
	random      func() uint32
	first, last uint32

	// mu guards the fields below.
	mu sync.Mutex
	of map[types.NamespacedName]uint32
	// users counts the VMIs of a CID: copied objects may share one, which is released
	// with the last of them.
	users map[uint32]int
}

var _ CIDAllocator = (*CIDs)(nil)

// NewCIDs returns an allocator that starts its search at a random number, so that a CID is not
// soon reused. A nil random means math/rand/v2.
func NewCIDs(random func() uint32) *CIDs {
	if random == nil {
		random = rand.Uint32
	}
	return &CIDs{
		random: random, first: firstCID, last: lastCID,
		of: map[types.NamespacedName]uint32{}, users: map[uint32]int{},
	}
}

// Sync implements CIDAllocator. Stored CIDs take precedence over allocated ones.
func (c *CIDs) Sync(vmis []v1.VirtualMachineInstance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range vmis {
		if cid := vmis[i].Status.VSOCKCID; cid != nil {
			c.lockedTake(types.NamespacedName{Namespace: vmis[i].Namespace, Name: vmis[i].Name}, *cid)
		}
	}
}

// Allocate implements CIDAllocator. If no CID is available, the error wraps ErrNoCID.
func (c *CIDs) Allocate(key types.NamespacedName) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cid, has := c.of[key]; has {
		return cid, nil
	}
	size := uint64(c.last) - uint64(c.first) + 1
	start := uint64(c.random()) % size
	for i := range size {
		cid := c.first + uint32((start+i)%size)
		if c.users[cid] == 0 {
			c.lockedTake(key, cid)
			return cid, nil
		}
	}
	return 0, fmt.Errorf("vmi: VSOCK CID of VirtualMachineInstance %s: %w", key, ErrNoCID)
}

// Release implements CIDAllocator.
func (c *CIDs) Release(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lockedDrop(key)
}

// lockedTake assigns the CID to the VMI, replacing its previous one.
func (c *CIDs) lockedTake(key types.NamespacedName, cid uint32) {
	if has, ok := c.of[key]; ok && has == cid {
		return
	}
	c.lockedDrop(key)
	c.of[key] = cid
	c.users[cid]++
}

func (c *CIDs) lockedDrop(key types.NamespacedName) {
	cid, has := c.of[key]
	if !has {
		return
	}
	delete(c.of, key)
	if c.users[cid]--; c.users[cid] == 0 {
		delete(c.users, cid)
	}
}
