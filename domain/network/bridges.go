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
	"github.com/virtloom/virtloom/domain/convert"
)

// defaultRecords is the default directory of records.
const defaultRecords = "/var/run/virtloom/networks"

// Bridges connects VMIs to bridges. Prepare and Release are idempotent and safe for concurrent use.
type Bridges struct {
	// Bridge returns the bridge of a network of the spec. It returns an error if the node does not
	// have the network.
	Bridge func(vmi *v1.VirtualMachineInstance, network v1.Network) (string, error)
	// Namespace is the file of the network namespace of the bridges (/proc/<pid>/ns/net). Defaults
	// to that of this process.
	Namespace string
	// Taps creates a tap device on the bridge for each network. If false, the hypervisor does so,
	// and only the bridge has to exist.
	Taps bool
	// User and Group may open the tap devices (KubeVirt: 107, qemu).
	User, Group int
	// Records is the directory of the records, one per VMI, which must not survive a reboot of the
	// node. Defaults to /var/run/virtloom/networks.
	Records string

	mu sync.Mutex
}

// wish is the desired setup of a network.
type wish struct {
	network, bridge, tap string
	multiqueue           bool
}

// Prepare sets up all networks of the VMI and returns their links by network name, without those
// that the hypervisor sets up itself. A network that was set up once is not inspected again before
// Release, since the guest may run by then. Until all bridges are up, the error wraps
// [domain.ErrNotReady].
func (b *Bridges) Prepare(_ context.Context, vmi *v1.VirtualMachineInstance) (map[string]convert.Link, error) {
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
			return nil, fmt.Errorf("setup of network %q on this node was interrupted; delete and recreate the VMI: %w", w.network, domain.ErrBroken)
		case !known:
			open = append(open, w)
		}
	}
	if len(open) > 0 {
		if err := b.make(&r, open); err != nil {
			return nil, err
		}
	}
	links := map[string]convert.Link{}
	for name, n := range r.Networks {
		if n.Tap != "" {
			links[name] = convert.Link{Tap: n.Tap, MTU: n.MTU}
		}
	}
	return links, nil
}

// wishes returns the networks with an interface.
func (b *Bridges) wishes(vmi *v1.VirtualMachineInstance) ([]wish, error) {
	if b.Bridge == nil {
		return nil, errors.New("network: Bridges.Bridge is not set")
	}
	used := map[string]bool{}
	for _, in := range vmi.Spec.Domain.Devices.Interfaces {
		// Other interfaces need no bridge, or are not handled by this package.
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

// make sets up the networks. It first checks all of them, before it changes anything.
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

// begin records that a network is about to be set up, if anything is created for it.
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

// takeBack removes the partial setup of a network, so that it can be retried. If that fails as
// well, the network stays begun.
func (b *Bridges) takeBack(s *space, r *record, w wish, cause error) error {
	if err := s.remove(w.tap); err != nil {
		return fmt.Errorf("setting up network %q: %w: %w", w.network, cause, errors.Join(domain.ErrBroken, err))
	}
	delete(r.Networks, w.network)
	return errors.Join(fmt.Errorf("setting up network %q: %w", w.network, cause), b.records().write(*r))
}

// Release removes everything that was created for the VMI, including a partial setup. It succeeds
// if there is nothing, or if the network namespace does not exist any more.
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
	case errors.Is(err, domain.ErrNotReady): // its devices are gone with it
	case err != nil:
		return err
	default:
		defer s.close()
		for name, n := range r.Networks {
			if err := s.remove(n.Tap); err != nil {
				return fmt.Errorf("network %q of VMI %s: %w", name, uid, err)
			}
		}
	}
	r.Networks = nil
	return b.records().write(r)
}

func (b *Bridges) records() records {
	if b.Records == "" {
		return records{defaultRecords}
	}
	return records{b.Records}
}
