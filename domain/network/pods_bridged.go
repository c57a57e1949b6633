// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/network/dhcp"
)

// firstServer is the address of the DHCP server at the first bridge, those after it have the next
// ones, as in KubeVirt. No packet is ever sent to them by a route.
var firstServer = netip.MustParseAddr("169.254.75.10")

// bridged gives a link of the Pod to the guest: its hardware address, its addresses and its routes.
//
//	eth0-nic ──── k6t-eth0 ──── tap0 ──── guest with the Pod's address
//	                 │
//	eth0, which holds the address, leads nowhere
//
// What the link had is recorded before the first change, outside of the Pod. The link that holds the
// address is a bridge without ports, since not all kernels have dummies.
type bridged struct {
	pod
	had held
	ctx context.Context
}

// connect completes the setup, whatever there is of it. The network reaches the guest last.
func (b bridged) connect() (convert.Link, error) {
	u := uplink{mtu: b.had.MTU}
	for _, prefix := range b.had.Addresses {
		u.ips = append(u.ips, prefix.Addr())
	}
	steps := []func(uplink) error{
		b.moved, b.emptied, b.quiet, b.bridge, b.server, b.tap, b.holder, b.routes, b.named, b.attached,
	}
	for _, step := range steps {
		if err := b.ctx.Err(); err != nil {
			return convert.Link{}, err
		}
		if err := step(u); err != nil {
			return convert.Link{}, err
		}
	}
	out := convert.Link{Tap: b.names.tap, MTU: uint(u.mtu), MAC: b.had.MAC, IPs: []string{}} //nolint:gosec // not negative
	for _, ip := range u.ips {
		out.IPs = append(out.IPs, ip.String())
	}
	return out, nil
}

// ordinal takes the names that Pods have from old releases, which number the links, if the Pod has such
// a link and not the other one.
func (p *pod) ordinal() error {
	if p.names.link == podLink {
		return nil
	}
	number := fmt.Sprintf("net%d", p.place)
	old := names{link: number, nic: number + "-nic", bridge: "k6t-" + number, tap: fmt.Sprintf("tap%d", p.place)}
	for _, n := range []names{p.names, old} {
		for _, name := range []string{n.link, n.nic} {
			if _, err := p.LinkByName(name); !linkMissing(err) {
				p.names = n
				return err
			}
		}
	}
	return nil
}

// moved gives the Pod's link its other name.
func (b bridged) moved(uplink) error {
	if _, err := b.LinkByName(b.names.nic); err == nil || !linkMissing(err) {
		return err
	}
	link, err := b.LinkByName(b.names.link)
	if linkMissing(err) || err == nil && link.Type() == bridgeDriver {
		return fmt.Errorf("link %s is lost; delete and recreate the VMI: %w", b.names.nic, domain.ErrBroken)
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", b.names.link, err)
	}
	// A link has to be down for that. Its routes are lost then, but recorded.
	if err := b.LinkSetDown(link); err != nil {
		return fmt.Errorf("setting link %s down: %w", b.names.link, err)
	}
	if err := b.LinkSetName(link, b.names.nic); err != nil {
		return fmt.Errorf("renaming link %s: %w", b.names.link, err)
	}
	return nil
}

// emptied takes hardware address and addresses from the Pod's link: they are the guest's.
func (b bridged) emptied(uplink) error {
	link, err := b.LinkByName(b.names.nic)
	if err != nil {
		return fmt.Errorf("link %s: %w", b.names.nic, err)
	}
	// Before it is up, which would give it an address.
	if err := sysctl("net/ipv6/conf/"+b.names.nic+"/disable_ipv6", "1"); err != nil {
		return err
	}
	if err := b.strip(link, nil); err != nil {
		return err
	}
	return b.address(link, b.derived("nic"))
}

// address sets the hardware address of a link, if it has another one.
func (b bridged) address(link netlink.Link, mac net.HardwareAddr) error {
	if bytes.Equal(link.Attrs().HardwareAddr, mac) {
		return nil
	}
	if err := b.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("hardware address of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// derived returns a hardware address that is the same each time, and no other one of the network: the
// guest's is part of it.
func (b bridged) derived(purpose string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(b.had.MAC + "/" + purpose))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// quiet keeps the Pod from answering for the guest's address: it holds it, at another link.
func (b bridged) quiet(uplink) error {
	return errors.Join(sysctl("net/ipv4/conf/all/arp_ignore", "1"), b.common())
}

// bridge makes the bridge between the guest and the Pod's link.
func (b bridged) bridge(u uplink) error {
	link, err := b.made(b.names.bridge, u, b.derived(bridgeDriver))
	if err != nil {
		return err
	}
	return errors.Join(sysctl("net/ipv6/conf/"+b.names.bridge+"/disable_ipv6", "1"), b.fill(link, u), b.raise(link))
}

// made returns a bridge of that name with that hardware address.
func (p pod) made(name string, u uplink, mac net.HardwareAddr) (netlink.Link, error) {
	link, err := p.find(name, bridgeDriver, func(netlink.Link) bool { return true })
	if err != nil {
		return nil, err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = name, u.mtu, mac
		if err := p.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("creating bridge %s: %w", name, err)
		}
		if link, err = p.LinkByName(name); err != nil {
			return nil, fmt.Errorf("bridge %s: %w", name, err)
		}
	}
	if !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		if err := p.LinkSetHardwareAddr(link, mac); err != nil {
			return nil, fmt.Errorf("hardware address of bridge %s: %w", name, err)
		}
	}
	return link, nil
}

// server gives the bridge the address of the DHCP server, if the guest has an address.
func (b bridged) server(uplink) error {
	link, err := b.LinkByName(b.names.bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", b.names.bridge, err)
	}
	want := map[netip.Prefix]bool{}
	if len(b.had.Addresses) > 0 {
		server := firstServer
		for range b.index {
			server = server.Next()
		}
		want[netip.PrefixFrom(server, server.BitLen())] = true
	}
	return b.complete(link, want)
}

// complete gives a link these addresses, and no others.
func (p pod) complete(link netlink.Link, want map[netip.Prefix]bool) error {
	if err := p.strip(link, want); err != nil {
		return err
	}
	for prefix := range want {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}}
		if prefix.Addr().Is6() {
			// No other host is there to have it, and without a guest the check would not end.
			a.Flags = unix.IFA_F_NODAD
		}
		if err := p.AddrAdd(link, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("address %s of link %s: %w", prefix, link.Attrs().Name, err)
		}
	}
	return nil
}

// holder makes the link that has the name and the addresses of the Pod's.
func (b bridged) holder(u uplink) error {
	link, err := b.made(b.names.link, u, b.derived("holder"))
	if err != nil {
		return err
	}
	want := map[netip.Prefix]bool{}
	for _, prefix := range b.had.Addresses {
		want[prefix] = true
		if prefix.Addr().Is6() {
			if err := sysctl("net/ipv6/conf/"+b.names.link+"/disable_ipv6", "0"); err != nil {
				return err
			}
		}
	}
	return errors.Join(b.fill(link, u), b.raise(link), b.complete(link, want))
}

// routes puts the guest's routes where its DHCP server finds them, and removes all others there.
func (b bridged) routes(uplink) error {
	link, err := b.LinkByName(b.names.link)
	if err != nil {
		return fmt.Errorf("link %s: %w", b.names.link, err)
	}
	filter := &netlink.Route{Table: dhcp.Routes, LinkIndex: link.Attrs().Index}
	have, err := b.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("routes of link %s: %w", b.names.link, err)
	}
	want := map[route]bool{}
	for _, r := range b.had.Routes {
		want[r] = true
	}
	for _, r := range have {
		if one := routeOf(r); want[one] {
			delete(want, one)
		} else if err := b.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("removing route %s: %w", r, err)
		}
	}
	for _, r := range b.had.Routes {
		if !want[r] {
			continue
		}
		if err := b.RouteAdd(r.at(link)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("route to %s: %w", r.To, err)
		}
	}
	return nil
}

// named marks the link that holds the address, which is what the DHCP server waits for.
func (b bridged) named(uplink) error {
	link, err := b.LinkByName(b.names.link)
	if err != nil {
		return fmt.Errorf("link %s: %w", b.names.link, err)
	}
	if alias := dhcp.Holder(b.names.bridge); link.Attrs().Alias != alias {
		if err := b.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("alias of link %s: %w", b.names.link, err)
		}
	}
	return nil
}

// attached connects the Pod's link to the bridge.
func (b bridged) attached(u uplink) error {
	link, err := b.LinkByName(b.names.nic)
	if err != nil {
		return fmt.Errorf("link %s: %w", b.names.nic, err)
	}
	return errors.Join(b.fill(link, u), b.join(link), b.raise(link))
}
