// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// rulesTable is the table in each family, which belongs to this package alone.
const rulesTable = "virtloom"

// rulesVersion changes with the rules, which are then replaced.
const rulesVersion = 1

// Chains, and what they are for: translating addresses as KubeVirt does, and guarding.
const (
	chainIn      = "prerouting"
	chainOut     = "output"
	chainAfter   = "postrouting"
	chainInbound = "inbound"  // to the Pod, from elsewhere or from the guest
	chainLocal   = "outbound" // to the guest, from the Pod's localhost
	chainGuard   = "guard"    // packets of the guest
	chainSource  = "source"   // packets of the guest that leave
)

// chain is a chain with its rules.
type chain struct {
	*nftables.Chain
	rules [][]expr.Any
}

// ruleset is the rules of one family.
type ruleset struct {
	family nftables.TableFamily
	subnet
	ports []portRange
	own   []netip.Addr // the Pod's addresses
}

// applyRules replaces the rules of each family that are not as they have to be, at once, and removes
// those of a family that the Pod does not have. Connections that exist keep their translation.
func applyRules(c card, u uplink) error {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }() // nothing is pending
	for _, r := range []ruleset{
		{family: nftables.TableFamilyIPv4, subnet: c.v4, ports: c.ports}, {family: nftables.TableFamilyIPv6, subnet: c.v6, ports: c.ports},
	} {
		for _, ip := range u.ips {
			if ip.Is4() == r.gateway.Is4() {
				r.own = append(r.own, ip)
			}
		}
		if err := r.apply(conn); err != nil {
			return fmt.Errorf("rules of %s: %w", r.prefix, err)
		}
	}
	return nil
}

func (r ruleset) apply(conn *nftables.Conn) error {
	table := &nftables.Table{Name: rulesTable, Family: r.family}
	_, err := conn.ListTableOfFamily(rulesTable, r.family)
	exists := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if len(r.own) == 0 {
		if exists {
			conn.DelTable(table)
			return conn.Flush()
		}
		return nil
	}
	chains := r.chains(table)
	mark := userdata.AppendString(nil, userdata.TypeComment, r.digest())
	if exists && inPlace(conn, table, chains, string(mark)) {
		return nil
	}
	if exists {
		conn.DelTable(table)
	}
	conn.AddTable(table)
	for _, c := range chains {
		conn.AddChain(c.Chain)
	}
	for _, c := range chains {
		for _, e := range c.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: c.Chain, Exprs: e, UserData: mark})
		}
	}
	return conn.Flush()
}

// inPlace reports whether all rules are there, and from the same input.
func inPlace(conn *nftables.Conn, table *nftables.Table, chains []chain, mark string) bool {
	for _, c := range chains {
		rules, err := conn.GetRules(table, c.Chain)
		if err != nil || len(rules) != len(c.rules) {
			return false
		}
		for _, have := range rules {
			if string(have.UserData) != mark {
				return false
			}
		}
	}
	return true
}

// digest is that of the input of the rules.
func (r ruleset) digest() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %v %v %v %v %v", rulesVersion, r.prefix, r.gateway, r.guest, r.ports, r.own))
	return "virtloom " + hex.EncodeToString(sum[:16])
}

func (r ruleset) chains(table *nftables.Table) []chain {
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, rules ...[]expr.Any) chain {
		return chain{&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority}, rules}
	}
	nat, filter := nftables.ChainTypeNAT, nftables.ChainTypeFilter
	in := [][]expr.Any{rule(iface(expr.MetaKeyIIFNAME, podLink), jump(chainInbound))}
	for _, ip := range r.own {
		// The guest reaches itself by the Pod's address as well.
		in = append(in, rule(iface(expr.MetaKeyIIFNAME, podBridge), address(false, netip.PrefixFrom(ip, ip.BitLen())), jump(chainInbound)))
	}
	loopback := netip.PrefixFrom(netip.IPv6Loopback(), 128)
	if r.gateway.Is4() {
		loopback = netip.MustParsePrefix("127.0.0.0/8")
	}
	guest := netip.PrefixFrom(r.guest, r.guest.BitLen())
	var inbound, local, out [][]expr.Any
	for _, match := range r.matches() {
		inbound = append(inbound, rule(match, r.translate(expr.NATTypeDestNAT, r.guest)))
		local = append(local, rule(match, address(true, loopback), r.translate(expr.NATTypeSourceNAT, r.gateway)))
		out = append(out, rule(address(false, loopback), match, r.translate(expr.NATTypeDestNAT, r.guest)))
	}
	return []chain{
		{&nftables.Chain{Name: chainInbound, Table: table}, inbound},
		{&nftables.Chain{Name: chainLocal, Table: table}, local},
		base(chainIn, nat, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, in...),
		base(chainOut, nat, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, out...),
		base(chainAfter, nat, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
			rule(address(true, guest), []expr.Any{&expr.Masq{}}),
			rule(iface(expr.MetaKeyOIFNAME, podBridge), jump(chainLocal))),
		// The route that leads the Pod's localhost to the guest does not lead the guest to the Pod's
		// localhost.
		base(chainGuard, filter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw,
			rule(iface(expr.MetaKeyIIFNAME, podBridge), address(false, loopback), dropVerdict())),
		// What is not from the guest's address would leave the Pod with the source that the guest chose.
		base(chainSource, filter, nftables.ChainHookForward, nftables.ChainPriorityFilter,
			rule(iface(expr.MetaKeyIIFNAME, podBridge), other(guest), dropVerdict())),
	}
}

// matches returns a match for each range of ports, one for everything without any.
func (r ruleset) matches() [][]expr.Any {
	if len(r.ports) == 0 {
		return [][]expr.Any{nil}
	}
	var out [][]expr.Any
	for _, p := range r.ports {
		first, last := binary.BigEndian.AppendUint16(nil, p.first), binary.BigEndian.AppendUint16(nil, p.last)
		match := []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p.protocol}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		}
		if p.first == p.last {
			match = append(match, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: first})
		} else {
			match = append(match, &expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: first}, &expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: last})
		}
		out = append(out, match)
	}
	return out
}

// rule joins the parts of a rule, with a counter before the last.
func rule(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for i, p := range parts {
		if i == len(parts)-1 {
			out = append(out, &expr.Counter{})
		}
		out = append(out, p...)
	}
	return out
}

// iface matches the name of a link.
func iface(key expr.MetaKey, name string) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

// address matches the source, or the destination, of a packet.
func address(source bool, p netip.Prefix) []expr.Any {
	size, offset := uint32(16), uint32(24) // in the header
	if p.Addr().Is4() {
		size, offset = 4, 16
	}
	if source {
		offset -= size
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// other matches any other source.
func other(p netip.Prefix) []expr.Any {
	out := address(true, p)
	out[len(out)-1].(*expr.Cmp).Op = expr.CmpOpNeq //nolint:forcetypeassert // see address
	return out
}

func (r ruleset) translate(kind expr.NATType, to netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.NAT{Type: kind, Family: uint32(r.family), RegAddrMin: 1},
	}
}

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func dropVerdict() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
