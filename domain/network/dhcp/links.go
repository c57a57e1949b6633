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

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// bridgePrefix begins the names of the bridges, as KubeVirt's.
	bridgePrefix = "k6t-"
	aliasPrefix  = "virtloom guest "
	holderPrefix = "virtloom address of the guest at "
)

// Routes is the routing table, which routes nothing, with the routes of a guest that has the Pod's
// address, at the link that holds it.
const Routes = 27446

// MaxRoutes bounds these: the option of DHCP has 255 bytes, a route at most nine.
const MaxRoutes = 28

// Alias returns the alias of the tap device of a guest with that hardware address, from which the
// server learns it.
func Alias(mac net.HardwareAddr) string { return aliasPrefix + mac.String() }

// Holder returns the alias of the link that holds the address of the guest at a bridge, where that
// is the Pod's own.
func Holder(bridge string) string { return holderPrefix + bridge }

// bridge is a bridge with a guest.
type bridge struct {
	name   string
	index  int
	mtu    int
	guest  string       // its hardware address
	v4, v6 netip.Prefix // the gateway, or the server's address beside own; the zero prefix for none
	own    own
}

// own is what a guest that has the address of the Pod gets. The zero value is that of all others.
type own struct {
	address netip.Prefix
	router  netip.Addr // if the address says how to reach it
	routes  string     // the option of classless routes
}

// bridges returns the bridges of this network namespace that are complete.
func bridges() ([]bridge, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	guests, holders := marked(links)
	var out []bridge
	for _, l := range links {
		a := l.Attrs()
		guest, known := guests[a.Index]
		if l.Type() != "bridge" || !strings.HasPrefix(a.Name, bridgePrefix) || a.Flags&net.FlagUp == 0 || !known {
			continue
		}
		b := bridge{name: a.Name, index: a.Index, mtu: a.MTU, guest: guest}
		if holder := holders[a.Name]; holder != nil {
			err = b.held(l, holder)
		} else {
			err = b.gateways(l)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b bridge) int { return cmp.Compare(a.index, b.index) })
	return out, nil
}

// marked returns the hardware addresses of guests by the index of their bridge, and the links that hold an
// address by its name.
func marked(links []netlink.Link) (guests map[int]string, holders map[string]netlink.Link) {
	guests, holders = map[int]string{}, map[string]netlink.Link{}
	for _, l := range links {
		a := l.Attrs()
		if name, holds := strings.CutPrefix(a.Alias, holderPrefix); holds {
			holders[name] = l
		}
		if mac, err := net.ParseMAC(strings.TrimPrefix(a.Alias, aliasPrefix)); err == nil && strings.HasPrefix(a.Alias, aliasPrefix) {
			guests[a.MasterIndex] = mac.String()
		}
	}
	return guests, holders
}

// gateways reads the addresses of the bridge, which are those of the guest's gateway.
func (b *bridge) gateways(l netlink.Link) (err error) {
	fits := func(p netip.Prefix) bool { return p.Addr().IsGlobalUnicast() && p.Contains(p.Addr().Next()) }
	if b.v4, err = firstAddress(l, netlink.FAMILY_V4, fits); err == nil {
		b.v6, err = firstAddress(l, netlink.FAMILY_V6, fits)
	}
	return err
}

// held reads the address and the routes of the guest from the link that holds them. A guest without
// an address is not served.
func (b *bridge) held(l, holder netlink.Link) (err error) {
	if b.v4, err = firstAddress(l, netlink.FAMILY_V4, netip.Prefix.IsValid); err != nil {
		return err
	}
	b.own.address, err = firstAddress(holder, netlink.FAMILY_V4, func(p netip.Prefix) bool { return p.Addr().IsGlobalUnicast() })
	if err != nil {
		return err
	}
	if !b.own.address.IsValid() {
		b.v4 = netip.Prefix{}
		return nil
	}
	list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: Routes, LinkIndex: holder.Attrs().Index}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("routes of link %s: %w", holder.Attrs().Name, err)
	}
	b.own.take(list)
	return nil
}

// take adds the routes: those that need no gateway first, since the others may need them. A default route
// by a gateway on the guest's own network is the router of every client.
func (l *own) take(list []netlink.Route) {
	var routes dhcpv4.Routes
	for _, r := range list[:min(len(list), MaxRoutes)] {
		dst, gw := r.Dst, r.Gw.To4()
		if dst == nil {
			dst = &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		}
		if gw == nil {
			gw = net.IPv4zero.To4()
		}
		router, _ := netip.AddrFromSlice(gw)
		if bits, _ := dst.Mask.Size(); bits == 0 && l.address.Contains(router) {
			l.router = router
		}
		routes = append(routes, &dhcpv4.Route{Dest: dst, Router: gw})
	}
	slices.SortStableFunc(routes, func(a, b *dhcpv4.Route) int {
		one, _ := a.Dest.Mask.Size()
		other, _ := b.Dest.Mask.Size()
		return cmp.Or(trueFirst(a.Router.IsUnspecified(), b.Router.IsUnspecified()), cmp.Compare(other, one), bytes.Compare(a.Dest.IP, b.Dest.IP))
	})
	// One route by the router is what clients make of it anyway.
	if len(routes) > 1 || len(routes) == 1 && !l.router.IsValid() {
		l.routes = string(routes.ToBytes())
	}
}

// trueFirst is that of what comes first and what does not.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// firstAddress returns the first address of a link that fits, with its network.
func firstAddress(l netlink.Link, family int, fits func(netip.Prefix) bool) (netip.Prefix, error) {
	list, err := netlink.AddrList(l, family)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("addresses of link %s: %w", l.Attrs().Name, err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(bytes.Clone(a.IP))
		bits, _ := a.Mask.Size()
		if p := netip.PrefixFrom(ip.Unmap(), bits); ok && fits(p) {
			return p, nil
		}
	}
	return netip.Prefix{}, nil
}

// openLinkWatch returns a socket that becomes readable when links, addresses or routes of this network
// namespace change.
func openLinkWatch() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE})
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
