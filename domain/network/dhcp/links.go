// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// bridgePrefix begins the names of the bridges, as KubeVirt's.
	bridgePrefix = "k6t-"
	aliasPrefix  = "virtloom guest "
)

// Alias returns the alias of the tap device of a guest with that hardware address, from which the
// server learns it.
func Alias(mac net.HardwareAddr) string { return aliasPrefix + mac.String() }

// bridge is a bridge with a guest.
type bridge struct {
	name   string
	index  int
	mtu    int
	guest  string       // its hardware address
	v4, v6 netip.Prefix // the gateway; the zero prefix for none
}

// bridges returns the bridges of this network namespace that are complete.
func bridges() ([]bridge, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	guests := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		if mac, err := net.ParseMAC(strings.TrimPrefix(a.Alias, aliasPrefix)); err == nil && strings.HasPrefix(a.Alias, aliasPrefix) {
			guests[a.MasterIndex] = mac.String()
		}
	}
	var out []bridge
	for _, l := range links {
		a := l.Attrs()
		guest, known := guests[a.Index]
		if l.Type() != "bridge" || !strings.HasPrefix(a.Name, bridgePrefix) || a.Flags&net.FlagUp == 0 || !known {
			continue
		}
		b := bridge{name: a.Name, index: a.Index, mtu: a.MTU, guest: guest}
		for family, to := range map[int]*netip.Prefix{netlink.FAMILY_V4: &b.v4, netlink.FAMILY_V6: &b.v6} {
			if *to, err = gateway(l, family); err != nil {
				return nil, err
			}
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b bridge) int { return cmp.Compare(a.index, b.index) })
	return out, nil
}

// gateway returns the first address of a link with its network.
func gateway(l netlink.Link, family int) (netip.Prefix, error) {
	list, err := netlink.AddrList(l, family)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("addresses of link %s: %w", l.Attrs().Name, err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(bytes.Clone(a.IP))
		bits, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), bits)
		if ok && p.Addr().IsGlobalUnicast() && p.Contains(p.Addr().Next()) {
			return p, nil
		}
	}
	return netip.Prefix{}, nil
}

// watch returns a socket that becomes readable when links or addresses of this network namespace
// change.
func watch() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch links: %w", err)
	}
	return os.NewFile(uintptr(fd), "links"), nil
}

// changes sends to wake after each change, until f is closed, and closes wake then. A change that is
// not received yet stands for those after it.
func changes(f *os.File, wake chan<- struct{}) {
	defer close(wake)
	buf := make([]byte, 64<<10)
	for {
		// Events that were lost are a change as well.
		if _, err := f.Read(buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}
