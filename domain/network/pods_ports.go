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
	all := slices.Clone(in.PortRanges)
	for _, p := range in.Ports {
		all = append(all, v1.PortRange{Protocol: p.Protocol, Start: p.Port, End: p.Port})
	}
	var ranges []portRange
	for _, p := range all {
		r, err := newRange(p)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, r)
	}
	out := merged(ranges)
	if len(out) > maxRanges {
		return nil, fmt.Errorf("%d ranges of ports are more than %d", len(out), maxRanges)
	}
	return out, nil
}

func newRange(p v1.PortRange) (portRange, error) {
	if p.Start < 1 || p.End > math.MaxUint16 || p.Start > p.End {
		return portRange{}, fmt.Errorf("invalid ports %d to %d", p.Start, p.End)
	}
	out := portRange{first: uint16(p.Start), last: uint16(p.End)} //nolint:gosec // just checked
	switch strings.ToUpper(p.Protocol) {
	case "", "TCP":
		out.protocol = unix.IPPROTO_TCP
	case "UDP":
		out.protocol = unix.IPPROTO_UDP
	default:
		return portRange{}, fmt.Errorf("unsupported protocol %.20q", p.Protocol)
	}
	return out, nil
}

// merged returns the ranges in order, and those that touch as one.
func merged(ranges []portRange) []portRange {
	slices.SortFunc(ranges, func(a, b portRange) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first))
	})
	var out []portRange
	for _, r := range ranges {
		if n := len(out); n > 0 && out[n-1].protocol == r.protocol && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
}
