// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// serverID is the same in all Pods, so that a guest that has migrated renews with the server of its
// new Pod.
var serverID = &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0}}

// answerV6 returns the reply to a message of DHCPv6 and where it is sent; nil for none.
func (s *server) answerV6(in []byte, from net.Addr) ([]byte, net.Addr) {
	m, err := dhcpv6.MessageFromBytes(in)
	if err != nil || m.Options.ClientID() == nil {
		return nil, nil
	}
	if id := m.Options.ServerID(); id != nil && !id.Equal(serverID) {
		return nil, nil // it has chosen another server
	}
	options := s.optionsV6(m)
	var out *dhcpv6.Message
	switch rapid := m.GetOneOption(dhcpv6.OptionRapidCommit) != nil; m.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if rapid {
			out, err = dhcpv6.NewReplyFromMessage(m, options...)
		} else {
			out, err = dhcpv6.NewAdvertiseFromSolicit(m, options...)
		}
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind, dhcpv6.MessageTypeConfirm,
		dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeInformationRequest:
		out, err = dhcpv6.NewReplyFromMessage(m, options...)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, nil
	}
	return out.ToBytes(), from
}

func (s *server) optionsV6(m *dhcpv6.Message) []dhcpv6.Modifier {
	out := []dhcpv6.Modifier{dhcpv6.WithServerID(serverID)}
	switch m.MessageType {
	case dhcpv6.MessageTypeInformationRequest, dhcpv6.MessageTypeRelease:
	case dhcpv6.MessageTypeConfirm:
		return append(out, dhcpv6.WithOption(&dhcpv6.OptStatusCode{StatusCode: s.confirmed(m)}))
	default:
		// One address, for the first that asks in the message.
		if ask := m.Options.OneIANA(); ask != nil {
			address := dhcpv6.OptIAAddress{IPv6Addr: s.v6.Addr().Next().AsSlice(), PreferredLifetime: lease, ValidLifetime: lease}
			out = append(out, dhcpv6.WithIAID(ask.IaId), dhcpv6.WithIANA(address))
		}
	}
	names := resolver(s.resolver)
	if servers := names.of(netip.Addr.Is6); len(servers) > 0 {
		out = append(out, dhcpv6.WithDNS(servers...))
	}
	if len(names.search) > 0 {
		out = append(out, dhcpv6.WithDomainSearchList(names.search...))
	}
	return out
}

// confirmed reports whether all addresses of a guest that has changed its link are right here.
func (s *server) confirmed(m *dhcpv6.Message) iana.StatusCode {
	for _, ia := range m.Options.IANA() {
		for _, a := range ia.Options.Addresses() {
			if ip, ok := netip.AddrFromSlice(a.IPv6Addr); !ok || ip != s.v6.Addr().Next() {
				return iana.StatusNotOnLink
			}
		}
	}
	return iana.StatusSuccess
}
