// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/binary"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

const (
	// lease is KubeVirt's: the address is the guest's for as long as it runs, whether it renews or
	// not.
	lease = 999 * 24 * time.Hour
	// clientPort is where clients of DHCPv4 listen.
	clientPort = 68
)

// answerV4 returns the reply to a message of DHCPv4 and where it is sent; nil for none.
func (s *server) answerV4(in []byte, _ net.Addr) ([]byte, net.Addr) {
	m, err := dhcpv4.FromBytes(in)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootRequest || m.HWType != iana.HWTypeEthernet || m.ClientHWAddr.String() != s.guest ||
		!m.GatewayIPAddr.IsUnspecified() {
		return nil, nil
	}
	kind := s.reply(m)
	if kind == dhcpv4.MessageTypeNone {
		return nil, nil
	}
	out, err := dhcpv4.NewReplyFromRequest(m, s.optionsV4(m, kind)...)
	if err != nil {
		return nil, nil
	}
	to := &net.UDPAddr{IP: net.IPv4bcast, Port: clientPort}
	// One that has its address is reached by it, unless it is the Pod's as well. To all others the
	// kernel could not send: the address has no owner yet that would answer for it.
	if kind == dhcpv4.MessageTypeAck && s.is(m.ClientIPAddr) && !m.IsBroadcast() && !s.own.address.IsValid() {
		to.IP = m.ClientIPAddr
	}
	return out.ToBytes(), to
}

// is reports whether an address is the guest's.
func (s *server) is(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && a.Unmap() == s.address().Addr()
}

// address is the guest's, with its network.
func (b bridge) address() netip.Prefix {
	if b.own.address.IsValid() {
		return b.own.address
	}
	return netip.PrefixFrom(b.v4.Addr().Next(), b.v4.Bits())
}

// ways are the options for the guest's routes.
func (b bridge) ways() []dhcpv4.Modifier {
	router := b.v4.Addr()
	if b.own.address.IsValid() {
		router = b.own.router
	}
	var out []dhcpv4.Modifier
	if router.IsValid() {
		out = append(out, dhcpv4.WithOption(dhcpv4.OptRouter(router.AsSlice())))
	}
	if b.own.routes != "" {
		out = append(out, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte(b.own.routes))))
	}
	return out
}

// reply returns the kind of the reply to a message: MessageTypeNone for none.
func (s *server) reply(m *dhcpv4.DHCPv4) dhcpv4.MessageType {
	server := m.ServerIdentifier()
	if server != nil && !server.Equal(s.v4.Addr().AsSlice()) {
		return dhcpv4.MessageTypeNone // it has chosen another server
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeInform:
		return dhcpv4.MessageTypeAck
	case dhcpv4.MessageTypeRequest:
		asked := m.RequestedIPAddress()
		if asked == nil {
			asked = m.ClientIPAddr
		}
		if s.is(asked) {
			return dhcpv4.MessageTypeAck
		}
		return dhcpv4.MessageTypeNak
	}
	return dhcpv4.MessageTypeNone
}

func (s *server) optionsV4(m *dhcpv4.DHCPv4, kind dhcpv4.MessageType) []dhcpv4.Modifier {
	out := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptMessageType(kind)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(s.v4.Addr().AsSlice()))}
	if kind == dhcpv4.MessageTypeNak {
		return out
	}
	if m.MessageType() != dhcpv4.MessageTypeInform {
		out = append(out, dhcpv4.WithYourIP(s.address().Addr().AsSlice()), dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(lease)))
	}
	mtu := binary.BigEndian.AppendUint16(nil, uint16(min(s.mtu, math.MaxUint16))) //nolint:gosec // not negative
	out = append(append(out, s.ways()...),
		dhcpv4.WithOption(dhcpv4.OptSubnetMask(net.CIDRMask(s.address().Bits(), 32))),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, mtu)))
	names := resolver(s.resolver)
	if servers := names.of(netip.Addr.Is4); len(servers) > 0 {
		out = append(out, dhcpv4.WithOption(dhcpv4.OptDNS(servers...)))
	}
	if len(names.search) > 0 {
		out = append(out, dhcpv4.WithOption(dhcpv4.OptDomainName(names.domain())),
			dhcpv4.WithOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: names.search})))
	}
	if dnsName(s.hostName) {
		out = append(out, dhcpv4.WithOption(dhcpv4.OptHostName(s.hostName)))
	}
	return out
}
