// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/network/dhcp"
	"github.com/virtloom/virtloom/internal/durable"
)

// maxAddresses bounds the addresses of a link that are recorded.
const maxAddresses = 16

// held is what a link of a Pod had before it was given to a guest.
type held struct {
	MAC string `json:"mac"`
	MTU int    `json:"mtu"`
	// Addresses have the length of the network that is reached at the link without a route, which
	// is that of the address alone where there is none. IPv4 is first.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Routes are those of IPv4, in the order in which they can be added. The others are the guest's
	// own, from the announcements of routers.
	Routes []route `json:"routes,omitempty"`
}

// route is one of a link; without a gateway what it leads to is at the link.
type route struct {
	To      netip.Prefix `json:"to"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// podRecord is the record of a VMI in the network namespace of its Pod.
type podRecord struct {
	Version int       `json:"version"`
	Guest   types.UID `json:"guest"`
	// Boot and Namespace are of the namespace: no other one ever has its cookie until the node boots
	// again.
	Boot      string          `json:"boot"`
	Namespace uint64          `json:"namespace"`
	Links     map[string]held `json:"links"`
}

// past returns the record of the VMI in the network namespace of this thread: an empty one if that of
// the VMI is of another Pod.
func (r records) past(uid types.UID) (podRecord, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return podRecord{}, err
	}
	cookie, err := namespaceCookie()
	if err != nil {
		return podRecord{}, err
	}
	fresh := podRecord{Version: recordVersion, Guest: uid, Boot: string(bytes.TrimSpace(boot)), Namespace: cookie, Links: map[string]held{}}
	data, err := os.ReadFile(r.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	var out podRecord
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err == nil && (out.Version != recordVersion || out.Guest != uid || out.Links == nil) {
		err = fmt.Errorf("version %d of guest %q", out.Version, out.Guest)
	}
	switch {
	case err != nil:
		return podRecord{}, fmt.Errorf("network: record %s is damaged; delete the VMI, then the record: %w: %w", r.path(uid), domain.ErrBroken, err)
	case out.Boot != fresh.Boot || out.Namespace != fresh.Namespace:
		return fresh, nil
	}
	return out, nil
}

// namespaceCookie returns the number of the network namespace of this thread.
func namespaceCookie() (uint64, error) {
	s, err := socket(unix.AF_INET, 0)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	cookie, err := unix.GetsockoptUint64(int(s.Fd()), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("network: the kernel does not number network namespaces, which binding bridge needs (Linux 5.14): %w: %w", domain.ErrUnsupported, err)
	}
	return cookie, nil
}

// remembered returns what the links of these cards had, from the record, or from the links, which it
// records then.
func (p pod) remembered(r records, uid types.UID, name string) (held, error) {
	past, err := r.past(uid)
	if err != nil {
		return held{}, err
	}
	if h, known := past.Links[name]; known {
		return h, nil
	}
	h, err := p.inspect()
	if err != nil {
		return held{}, err
	}
	past.Links[name] = h
	return h, durable.WriteJSON(r.path(uid), past)
}

// inspect reads the Pod's link before it is given to the guest. What it finds is bounded: the Pod's
// containers may have been here.
func (p pod) inspect() (held, error) {
	link, err := p.LinkByName(p.names.link)
	if linkMissing(err) {
		return held{}, fmt.Errorf("link %s: not found: %w", p.names.link, domain.ErrNotReady)
	}
	if err != nil {
		return held{}, fmt.Errorf("link %s: %w", p.names.link, err)
	}
	_, err = p.LinkByName(p.names.nic)
	if err == nil || link.Type() == bridgeDriver {
		return held{}, fmt.Errorf("link %s is not that of the Pod any more, and the record of it is lost; delete and recreate the VMI: %w", p.names.link, domain.ErrBroken)
	}
	if !linkMissing(err) {
		return held{}, fmt.Errorf("link %s: %w", p.names.nic, err)
	}
	h := held{MAC: link.Attrs().HardwareAddr.String(), MTU: link.Attrs().MTU}
	if len(link.Attrs().HardwareAddr) != 6 || link.Attrs().HardwareAddr[0]&1 != 0 {
		return held{}, fmt.Errorf("link %s is a %s without a hardware address of Ethernet: %w", p.names.link, link.Type(), domain.ErrUnsupported)
	}
	if err := p.read(link, &h); err != nil {
		return held{}, fmt.Errorf("link %s: %w", p.names.link, err)
	}
	if len(h.Addresses) == 0 && p.names.link == podLink {
		return held{}, fmt.Errorf("link %s has no address yet: %w", podLink, domain.ErrNotReady)
	}
	return h, nil
}

// read reads addresses and routes of a link.
func (p pod) read(link netlink.Link, h *held) error {
	routes, err := p.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	direct := map[netip.Prefix]bool{}
	for _, r := range routes {
		one := routeOf(r)
		if !one.Gateway.IsValid() {
			direct[one.To] = true
		}
		if r.Protocol == unix.RTPROT_KERNEL && !one.Gateway.IsValid() {
			continue // of the address
		}
		h.Routes = append(h.Routes, one)
	}
	if h.Addresses, err = p.addressesOf(link, direct); err != nil {
		return err
	}
	if len(h.Routes) > dhcp.MaxRoutes || len(h.Addresses) > maxAddresses {
		return fmt.Errorf("it has more than %d routes or %d addresses: %w", dhcp.MaxRoutes, maxAddresses, domain.ErrUnsupported)
	}
	h.Routes = ordered(h.Routes)
	return nil
}

// addressesOf returns the addresses of a link. Where the network itself is not at the link, the guest must
// not look for it there.
func (p pod) addressesOf(link netlink.Link, direct map[netip.Prefix]bool) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := p.AddrList(link, family)
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			ip, ok := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); !ok || !ip.IsGlobalUnicast() {
				continue
			}
			bits, _ := a.Mask.Size()
			prefix := netip.PrefixFrom(ip, bits)
			if ip.Is4() && !direct[prefix.Masked()] {
				prefix = netip.PrefixFrom(ip, ip.BitLen())
			}
			out = append(out, prefix)
		}
	}
	return out, nil
}

// ordered returns the routes without a gateway before those with one.
func ordered(in []route) []route {
	var direct, others []route
	for _, r := range in {
		if r.Gateway.IsValid() {
			others = append(others, r)
		} else {
			direct = append(direct, r)
		}
	}
	return append(direct, others...)
}

// routeOf returns a route of IPv4.
func routeOf(r netlink.Route) route {
	out := route{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	if r.Dst != nil {
		if ip, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			out.To = netip.PrefixFrom(ip.Unmap(), bits)
		}
	}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		out.Gateway = gw.Unmap()
	}
	return out
}

// at returns the route at the link that holds the address, in the table that routes nothing.
func (r route) at(link netlink.Link) *netlink.Route {
	out := &netlink.Route{
		LinkIndex: link.Attrs().Index, Table: dhcp.Routes, Scope: netlink.SCOPE_LINK,
		Dst: &net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), r.To.Addr().BitLen())},
	}
	if r.Gateway.IsValid() {
		out.Gw, out.Scope, out.Flags = r.Gateway.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	return out
}
