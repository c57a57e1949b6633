// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// DefaultRecords is where it is written down what has been made for guests.
const DefaultRecords = "/var/run/virtloom/networks"

// Bridges plugs guests into bridges. Prepare and Release may be called at any time and
// by anybody; repeating them changes nothing.
type Bridges struct {
	// Bridge names the bridge for a network of a guest's spec. An error says that the
	// network is none that this node has.
	Bridge func(vmi *v1.VirtualMachineInstance, network v1.Network) (string, error)
	// Namespace is a file of the network namespace the bridges are in
	// (/proc/<pid>/ns/net); empty means this process's.
	Namespace string
	// Taps makes a tap device on the bridge for each network. Without it the
	// hypervisor does that, and only the bridge has to be there.
	Taps bool
	// User and Group may open the tap devices (KubeVirt: 107, qemu).
	User, Group int
	// Records is the folder for the records of guests, which has to last until the node
	// is started anew and no longer; empty means DefaultRecords.
	Records string

	mu sync.Mutex
}

// wish is a network of a guest, and what it shall have.
type wish struct {
	network, bridge, tap string
	multiqueue           bool
}

// Prepare makes sure that all of the guest's networks can be plugged in, and returns
// what there is for each, by the name of the network; nothing for those the hypervisor
// plugs in by itself. A network that has been ready once is not looked at again before
// Release: the guest may run by then.
func (b *Bridges) Prepare(_ context.Context, vmi *v1.VirtualMachineInstance) (map[string]domain.Link, error) {
	if err := checkUID(vmi.UID); err != nil {
		return nil, err
	}
	wishes, err := b.wishes(vmi)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.records().read(vmi.UID)
	if err != nil {
		return nil, err
	}
	var open []wish
	for _, w := range wishes {
		n, known := r.Networks[w.network]
		switch {
		case known && !n.Finished:
			return nil, fmt.Errorf("network %q was begun on this node and not finished; delete the guest and start it again: %w", w.network, domain.ErrBroken)
		case !known:
			open = append(open, w)
		}
	}
	if len(open) > 0 {
		if err := b.make(&r, open); err != nil {
			return nil, err
		}
	}
	links := map[string]domain.Link{}
	for name, n := range r.Networks {
		if n.Tap != "" {
			links[name] = domain.Link{Tap: n.Tap, MTU: n.MTU}
		}
	}
	return links, nil
}

// wishes are the networks the guest has an interface on.
func (b *Bridges) wishes(vmi *v1.VirtualMachineInstance) ([]wish, error) {
	if b.Bridge == nil {
		return nil, errors.New("network: Bridges.Bridge is not set")
	}
	used := map[string]bool{}
	for _, in := range vmi.Spec.Domain.Devices.Interfaces {
		// The others need no bridge, or are none of this package's.
		used[in.Name] = in.SRIOV == nil && in.PasstBinding == nil && in.Binding == nil && in.State != v1.InterfaceStateAbsent
	}
	queues := vmi.Spec.Domain.Devices.NetworkInterfaceMultiQueue
	var out []wish
	for _, n := range vmi.Spec.Networks {
		if !used[n.Name] {
			continue
		}
		bridge, err := b.Bridge(vmi, n)
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", n.Name, err)
		}
		w := wish{network: n.Name, bridge: bridge, multiqueue: queues != nil && *queues}
		if b.Taps {
			w.tap = TapName(vmi.UID, n.Name)
		}
		out = append(out, w)
	}
	return out, nil
}

// make gets the networks ready: first it looks whether all can be, then it begins.
func (b *Bridges) make(r *record, open []wish) error {
	s, err := openSpace(b.Namespace)
	if err != nil {
		return err
	}
	defer s.close()
	for _, w := range open {
		if err := s.bridge(w.bridge); err != nil {
			return fmt.Errorf("waiting for network %q: %w", w.network, err)
		}
	}
	for _, w := range open {
		if err := b.begin(r, w); err != nil {
			return err
		}
		mtu, err := b.makeOne(s, w)
		if err != nil {
			return b.takeBack(s, r, w, err)
		}
		r.Networks[w.network] = made{Tap: w.tap, MTU: mtu, Finished: true}
		if err := b.records().write(*r); err != nil {
			return err
		}
	}
	return nil
}

// begin notes that something is about to be made, if anything is.
func (b *Bridges) begin(r *record, w wish) error {
	if w.tap == "" {
		return nil
	}
	r.Networks[w.network] = made{Tap: w.tap}
	return b.records().write(*r)
}

func (b *Bridges) makeOne(s *space, w wish) (mtu uint, err error) {
	if w.tap == "" {
		return 0, nil
	}
	return s.plug(w, b.User, b.Group)
}

// takeBack undoes what was made of a network, so that it can be begun again. If that
// fails, too, the network stays begun.
func (b *Bridges) takeBack(s *space, r *record, w wish, cause error) error {
	if err := s.remove(w.tap); err != nil {
		return fmt.Errorf("network %q cannot be made: %w: %w", w.network, cause, errors.Join(domain.ErrBroken, err))
	}
	delete(r.Networks, w.network)
	return errors.Join(fmt.Errorf("network %q cannot be made: %w", w.network, cause), b.records().write(*r))
}

// Release takes away what was made for the guest, a half-made network included. A guest
// for which nothing was made is a success, and so is one whose network namespace is
// gone.
func (b *Bridges) Release(_ context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.records().read(uid)
	if err != nil || len(r.Networks) == 0 {
		return err
	}
	s, err := openSpace(b.Namespace)
	switch {
	case errors.Is(err, domain.ErrNotReady): // and its devices with it
	case err != nil:
		return err
	default:
		defer s.close()
		for name, n := range r.Networks {
			if err := s.remove(n.Tap); err != nil {
				return fmt.Errorf("network %q of guest %s: %w", name, uid, err)
			}
		}
	}
	r.Networks = nil
	return b.records().write(r)
}

func (b *Bridges) records() records {
	if b.Records == "" {
		return records{DefaultRecords}
	}
	return records{b.Records}
}
