// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"
)

// maxRanges bounds the rules of one interface.
const maxRanges = 256

// portRange is a range of ports that leads to the guest.
type portRange struct {
	protocol    byte
	first, last uint16
}

// portsOf returns the ports of an interface, sorted and merged. None means all.
func portsOf(in *v1.Interface) ([]portRange, error) {
	var all []portRange
	add := func(protocol string, first, last int32) error {
		r := portRange{first: uint16(first), last: uint16(last)} //nolint:gosec // checked below
		switch strings.ToUpper(protocol) {
		case "", "TCP":
			r.protocol = unix.IPPROTO_TCP
		case "UDP":
			r.protocol = unix.IPPROTO_UDP
		default:
			return fmt.Errorf("Unsupported value: protocol %.20q", protocol)
		}
		if first < 1 || last > math.MaxUint16 || first > last {
			return fmt.Errorf("Invalid value: ports %d to %d", first, last)
		}
		all = append(all, r)
		return nil
	}
	for _, p := range in.Ports {
		if err := add(p.Protocol, p.Port, p.Port); err != nil {
			return nil, err
		}
	}
	for _, p := range in.PortRanges {
		if err := add(p.Protocol, p.Start, p.End); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b portRange) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first))
	})
	var out []portRange
	for _, r := range all {
		if n := len(out); n > 0 && out[n-1].protocol == r.protocol && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	if len(out) > maxRanges {
		return nil, fmt.Errorf("Too many: %d ranges of ports, at most %d are supported", len(out), maxRanges)
	}
	return out, nil
}
