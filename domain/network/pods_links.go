// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/network/dhcp"
)

// netlinkTimeout bounds an answer of the kernel.
const netlinkTimeout = 10 * time.Second

// pod is the network namespace of a launcher. Its methods run on the thread that has entered it.
type pod struct {
	*netlink.Handle
	card
	user, group int
}

// uplink is the Pod's own link.
type uplink struct {
	mtu int
	ips []netip.Addr // IPv4 before IPv6
}

// open returns the network namespace of this thread.
func (p Pods) open(c card) (pod, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return pod{}, err
	}
	if err := handle.SetSocketTimeout(netlinkTimeout); err != nil {
		handle.Close()
		return pod{}, err
	}
	return pod{Handle: handle, card: c, user: p.User, group: p.Group}, nil
}

// connect sets up link, gateway, tap device and rules of binding masquerade. Each step
// changes only what is not as it has to be, so it may have been interrupted anywhere. What the guest
// is reached by comes last.
func (p pod) connect(ctx context.Context) (convert.Link, error) {
	up, err := p.uplink()
	if err != nil {
		return convert.Link{}, err
	}
	for _, step := range []func(uplink) error{p.free, p.bridge, p.addresses, p.sysctls, p.tap, func(u uplink) error { return applyRules(p.card, u) }} {
		if err := ctx.Err(); err != nil {
			return convert.Link{}, err
		}
		if err := step(up); err != nil {
			return convert.Link{}, err
		}
	}
	out := convert.Link{Tap: podTap, MTU: uint(up.mtu), IPs: []string{}} //nolint:gosec // not negative
	for _, ip := range up.ips {
		out.IPs = append(out.IPs, ip.String())
	}
	return out, nil
}

// has reports whether the Pod has an address of the family of a.
func (u uplink) has(a netip.Addr) bool {
	for _, ip := range u.ips {
		if ip.Is4() == a.Is4() {
			return true
		}
	}
	return false
}

// subnets returns those of the families that the Pod has.
func (c card) subnets(u uplink) []subnet {
	var out []subnet
	for _, s := range []subnet{c.v4, c.v6} {
		if u.has(s.gateway) {
			out = append(out, s)
		}
	}
	return out
}

// uplink reads the Pod's own link.
func (p pod) uplink() (uplink, error) {
	link, err := p.LinkByName(podLink)
	if linkMissing(err) {
		return uplink{}, fmt.Errorf("link %s: not found: %w", podLink, domain.ErrNotReady)
	}
	if err != nil {
		return uplink{}, fmt.Errorf("link %s: %w", podLink, err)
	}
	u := uplink{mtu: link.Attrs().MTU}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := p.AddrList(link, family)
		if err != nil {
			return uplink{}, fmt.Errorf("addresses of link %s: %w", podLink, err)
		}
		for _, a := range list {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap().IsGlobalUnicast() {
				u.ips = append(u.ips, ip.Unmap())
			}
		}
	}
	if len(u.ips) == 0 {
		return uplink{}, fmt.Errorf("link %s has no address yet: %w", podLink, domain.ErrNotReady)
	}
	return u, nil
}

// free checks that the addresses of the guest's network are not those of the Pod's.
func (p pod) free(u uplink) error {
	for _, s := range p.subnets(u) {
		for _, ip := range u.ips {
			if s.prefix.Contains(ip) {
				return fmt.Errorf("the Pod's address %s is in the guest's network %s; set %s to a network that the cluster does not use: %w", ip, s.prefix, s.field, domain.ErrInvalid)
			}
		}
	}
	return nil
}

func linkMissing(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}

// find returns the link of that name if it is of the type, and removes any other.
func (p pod) find(name, kind string, fits func(netlink.Link) bool) (netlink.Link, error) {
	link, err := p.LinkByName(name)
	if linkMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	if link.Type() == kind && fits(link) {
		return link, nil
	}
	if err := p.LinkDel(link); err != nil {
		return nil, fmt.Errorf("removing link %s, a %s that does not fit: %w", name, link.Type(), err)
	}
	return nil, nil
}

// bridge makes the bridge of the guest's gateway.
func (p pod) bridge(u uplink) error {
	link, err := p.made(podBridge, u, bridgeMAC)
	if err != nil {
		return err
	}
	return errors.Join(p.fill(link, u), p.raise(link))
}

// fill sets a link's MTU to that of the Pod's.
func (p pod) fill(link netlink.Link, u uplink) error {
	if link.Attrs().MTU == u.mtu {
		return nil
	}
	if err := p.LinkSetMTU(link, u.mtu); err != nil {
		return fmt.Errorf("MTU of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// raise sets a link up.
func (p pod) raise(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := p.LinkSetUp(link); err != nil {
			return fmt.Errorf("setting link %s up: %w", link.Attrs().Name, err)
		}
	}
	return nil
}

// addresses gives the bridge those of the gateway, and no others.
func (p pod) addresses(u uplink) error {
	link, err := p.LinkByName(podBridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", podBridge, err)
	}
	want := map[netip.Prefix]bool{}
	for _, s := range p.subnets(u) {
		want[netip.PrefixFrom(s.gateway, s.prefix.Bits())] = true
		if s.gateway.Is6() {
			if err := sysctl("net/ipv6/conf/"+podBridge+"/disable_ipv6", "0"); err != nil {
				return err
			}
		}
	}
	return p.complete(link, want)
}

// strip removes other addresses of a link than the wanted ones, and takes those that it has from
// these.
func (p pod) strip(link netlink.Link, want map[netip.Prefix]bool) error {
	have, err := p.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of link %s: %w", link.Attrs().Name, err)
	}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if prefix := netip.PrefixFrom(ip.Unmap(), bits); want[prefix] || ip.IsLinkLocalUnicast() {
			delete(want, prefix)
			continue
		}
		if err := p.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("removing address %s of link %s: %w", a.IPNet, link.Attrs().Name, err)
		}
	}
	return nil
}

// sysctls lets packets pass between the guest and the Pod's link, and the launcher, which has no
// capabilities, serve DHCP.
func (p pod) sysctls(u uplink) error {
	for _, s := range p.subnets(u) {
		var err error
		if s.gateway.Is4() {
			// The Pod's localhost leads to the guest as well; see the rules.
			err = errors.Join(sysctl("net/ipv4/ip_forward", "1"), sysctl("net/ipv4/conf/"+podBridge+"/route_localnet", "1"))
		} else {
			err = sysctl("net/ipv6/conf/all/forwarding", "1")
		}
		if err != nil {
			return err
		}
	}
	return p.common()
}

// common sets the parameters for every binding.
func (p pod) common() error {
	// Where the node translates frames of bridges as well, what a guest sends to itself would never
	// be routed, and be lost. Without that module there is no such parameter.
	for _, name := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if err := sysctl(name, "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	const first = "net/ipv4/ip_unprivileged_port_start"
	now, err := os.ReadFile(sysctlPath(first))
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(now))); err == nil && n <= dhcp.Port {
		return nil
	}
	return sysctl(first, strconv.Itoa(dhcp.Port))
}

func sysctlPath(name string) string { return filepath.Join("/proc/sys", name) }

// sysctl sets a parameter of the network namespace of this thread, if it has another value.
func sysctl(name, value string) error {
	now, err := os.ReadFile(sysctlPath(name))
	if err != nil || strings.TrimSpace(string(now)) == value {
		return err
	}
	return os.WriteFile(sysctlPath(name), []byte(value), 0o644) //nolint:gosec // it exists
}

// tap makes the tap device of the guest. One that is in use is left alone: the guest runs.
func (p pod) tap(u uplink) error {
	link, err := p.find(p.names.tap, "tuntap", p.fits)
	if err != nil {
		return err
	}
	if link == nil {
		w := wish{tap: p.names.tap, multiqueue: p.multiqueue}
		if err := new(space).tap(w, p.user, p.group); err != nil {
			return fmt.Errorf("creating tap device %s: %w", p.names.tap, err)
		}
		if link, err = p.LinkByName(p.names.tap); err != nil {
			return fmt.Errorf("tap device %s: %w", p.names.tap, err)
		}
	}
	// Before the guest can ask for its address.
	if alias := dhcp.Alias(p.mac); link.Attrs().Alias != alias {
		if err := p.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("alias of tap device %s: %w", p.names.tap, err)
		}
	}
	// A bridge takes the least MTU of its links, so that comes before they are attached.
	if err := p.fill(link, u); err != nil {
		return err
	}
	return errors.Join(p.join(link), p.raise(link))
}

// join attaches a link to the bridge.
func (p pod) join(link netlink.Link) error {
	bridge, err := p.LinkByName(p.names.bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", p.names.bridge, err)
	}
	if link.Attrs().MasterIndex != bridge.Attrs().Index {
		if err := p.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("attaching link %s to bridge %s: %w", link.Attrs().Name, p.names.bridge, err)
		}
	}
	return nil
}

// fits reports whether the hypervisor can use the tap device, or uses it.
func (p pod) fits(link netlink.Link) bool {
	tap, ok := link.(*netlink.Tuntap)
	if !ok || tap.Mode != netlink.TUNTAP_MODE_TAP || int64(tap.Owner) != int64(p.user) || int64(tap.Group) != int64(p.group) || tap.NonPersist {
		return false
	}
	const inUse = unix.IFF_LOWER_UP
	return link.Attrs().RawFlags&inUse != 0 || tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 == p.multiqueue
}
