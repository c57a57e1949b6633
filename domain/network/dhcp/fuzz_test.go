// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// FuzzMessages sends what a guest may send: whatever it is, the answer is none or a message to the
// guest alone, with no address but its own.
func FuzzMessages(f *testing.F) {
	hw := net.HardwareAddr{2, 0, 0, 0x12, 0x34, 0x56}
	s := &server{bridge: bridge{
		name: "k6t-eth0", mtu: 1450, guest: hw.String(), v4: netip.MustParsePrefix("10.0.2.1/24"), v6: netip.MustParsePrefix("fd10:0:2::1/120"),
	}, resolver: "/nowhere", hostName: "web"}
	discover, err := dhcpv4.NewDiscovery(hw)
	if err != nil {
		f.Fatal(err)
	}
	solicit, err := dhcpv6.NewSolicit(hw)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{nil, discover.ToBytes(), solicit.ToBytes()} {
		f.Add(seed)
	}
	from := &net.UDPAddr{IP: net.IPv6linklocalallnodes, Port: 546}
	f.Fuzz(func(t *testing.T, in []byte) {
		if out, to := s.answerV4(in, nil); out != nil {
			m, err := dhcpv4.FromBytes(out)
			if err != nil || m.ClientHWAddr.String() != hw.String() || !m.YourIPAddr.IsUnspecified() && !s.is(m.YourIPAddr) {
				t.Errorf("%v, %v", m, err)
			}
			if u, ok := to.(*net.UDPAddr); !ok || u.Port != clientPort || !u.IP.Equal(net.IPv4bcast) && !s.is(u.IP) {
				t.Errorf("to %v", to)
			}
		}
		if out, to := s.answerV6(in, from); out != nil {
			m, err := dhcpv6.MessageFromBytes(out)
			if err != nil || to != from {
				t.Fatalf("%v, to %v", err, to)
			}
			for _, ia := range m.Options.IANA() {
				for _, a := range ia.Options.Addresses() {
					if a.IPv6Addr.String() != "fd10:0:2::2" {
						t.Errorf("address %s", a.IPv6Addr)
					}
				}
			}
		}
	})
}
