// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
)

const (
	// maxResolver bounds what is read of the file.
	maxResolver = 64 << 10
	// maxServers bounds the name servers, as resolvers do.
	maxServers = 3
	// maxSearch bounds the search domains together: an option of DHCPv4 has 255 bytes.
	maxSearch = 253
)

// names are the name servers and the search domains of the Pod.
type names struct {
	servers []netip.Addr
	search  []string
}

// resolver reads the file as it is now: the guest asks seldom. Without one there are none.
func resolver(path string) names {
	f, err := os.Open(path)
	if err != nil {
		return names{}
	}
	defer f.Close()
	var out names
	lines := bufio.NewScanner(io.LimitReader(f, maxResolver))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			// A server at the Pod's own localhost is not the guest's.
			if ip, err := netip.ParseAddr(words[1]); err == nil && !ip.IsLoopback() && ip.Zone() == "" {
				out.servers = append(out.servers, ip.Unmap())
			}
		case "search", "domain":
			out.search = fitting(words[1:]) // the last one counts
		}
	}
	return out
}

// fitting returns the valid domains, as many as an option has space for.
func fitting(domains []string) []string {
	var out []string
	size := 0
	for _, d := range domains {
		d = strings.TrimSuffix(d, ".")
		size += len(d) + 2
		if size > maxSearch {
			break
		}
		if dnsName(d) {
			out = append(out, d)
		}
	}
	return out
}

var fitName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*$`)

func dnsName(s string) bool { return len(s) <= maxSearch && fitName.MatchString(s) }

// of returns the first servers of a family.
func (n names) of(family func(netip.Addr) bool) []net.IP {
	var out []net.IP
	for _, s := range n.servers {
		if family(s) && len(out) < maxServers {
			out = append(out, s.AsSlice())
		}
	}
	return out
}

// domain returns the domain of the guest, which is the longest one, as in KubeVirt: that of its
// namespace.
func (n names) domain() string {
	longest := ""
	for _, d := range n.search {
		if len(d) > len(longest) {
			longest = d
		}
	}
	return longest
}
