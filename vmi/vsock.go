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

// CIDs below 3 belong to the hypervisor, the host and loopback; the highest number
// stands for any.
const (
	firstCID = 3
	lastCID  = math.MaxUint32 - 1
)

// ErrNoCID tells that every VSOCK CID is in use.
var ErrNoCID = errors.New("every VSOCK CID is in use; delete guests with autoattachVSOCK")

// CIDAllocator gives guests the context identifiers by which they are reached over
// VSOCK (status.VSOCKCID); no two guests of the cluster have the same. It is safe
// for concurrent use. The default is [CIDs]. (specs: VMI reconciliation 6)
type CIDAllocator interface {
	// Sync takes note of the CIDs that stored guests have. It must have been called
	// with all of them before the first Allocate; calling it again is harmless and
	// forgets nothing.
	Sync(vmis []v1.VirtualMachineInstance)
	// Allocate returns the guest's CID, the same one until Release.
	Allocate(guest types.NamespacedName) (uint32, error)
	// Release gives back the CID of a guest that is gone. A guest without one is
	// ignored.
	Release(guest types.NamespacedName)
}

// CIDs is the CIDAllocator that keeps its books in memory. What it knows after a
// restart is what Sync tells it: the CID of a guest counts once it is stored.
type CIDs struct {
	random      func() uint32
	first, last uint32

	// mu guards what follows.
	mu sync.Mutex
	of map[types.NamespacedName]uint32
	// users counts the guests of a CID: objects that were copied may share one, and
	// it is free when the last of them is gone.
	users map[uint32]int
}

var _ CIDAllocator = (*CIDs)(nil)

// NewCIDs returns an allocator that starts its search at a random number, so that a
// CID is not soon used again. A nil random means that of math/rand/v2.
func NewCIDs(random func() uint32) *CIDs {
	if random == nil {
		random = rand.Uint32
	}
	return &CIDs{
		random: random, first: firstCID, last: lastCID,
		of: map[types.NamespacedName]uint32{}, users: map[uint32]int{},
	}
}

// Sync implements CIDAllocator. What is stored wins over what was allocated.
func (c *CIDs) Sync(vmis []v1.VirtualMachineInstance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range vmis {
		if cid := vmis[i].Status.VSOCKCID; cid != nil {
			c.lockedTake(types.NamespacedName{Namespace: vmis[i].Namespace, Name: vmis[i].Name}, *cid)
		}
	}
}

// Allocate implements CIDAllocator. It returns an error that wraps ErrNoCID if
// there is none left.
func (c *CIDs) Allocate(guest types.NamespacedName) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cid, has := c.of[guest]; has {
		return cid, nil
	}
	size := uint64(c.last) - uint64(c.first) + 1
	start := uint64(c.random()) % size
	for i := range size {
		cid := c.first + uint32((start+i)%size)
		if c.users[cid] == 0 {
			c.lockedTake(guest, cid)
			return cid, nil
		}
	}
	return 0, fmt.Errorf("vmi: VSOCK CID for guest %s: %w", guest, ErrNoCID)
}

// Release implements CIDAllocator.
func (c *CIDs) Release(guest types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lockedDrop(guest)
}

// lockedTake makes the CID the guest's, in place of the one it had.
func (c *CIDs) lockedTake(guest types.NamespacedName, cid uint32) {
	if has, ok := c.of[guest]; ok && has == cid {
		return
	}
	c.lockedDrop(guest)
	c.of[guest] = cid
	c.users[cid]++
}

func (c *CIDs) lockedDrop(guest types.NamespacedName) {
	cid, has := c.of[guest]
	if !has {
		return
	}
	delete(c.of, guest)
	if c.users[cid]--; c.users[cid] == 0 {
		delete(c.users, cid)
	}
}
