// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

const (
	// istioAnnotation asks for the proxy of the service mesh Istio.
	istioAnnotation = "sidecar.istio.io/inject"

	protocolTCP = "tcp"
	protocolUDP = "udp"
)

// istioPorts are those of Istio's proxy in the guest's Pod. Istio documents them as
// taken ("Ports used by Istio"); they cannot belong to the guest as well.
var istioPorts = []uint{15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}

// passt plugs a card into passt, which libvirt starts and which forwards what
// arrives at the Pod's link.
func (c *Conversion) passt(field string, in *v1.Interface, out *libvirtxml.DomainInterface) error {
	link := c.Facts.Links[in.Name].Passt
	if link == "" {
		return c.noNetwork(in.Name, "the node does not know the link of the Pod that passt takes over")
	}
	if len(in.PortRanges) > 0 {
		return c.Invalid(field+".portRanges", "only masquerade forwards ranges of ports", "name the ports in "+field+".ports")
	}
	log, err := c.filePath("passt-" + in.Name + ".log")
	if err != nil {
		return err
	}
	out.Source = &libvirtxml.DomainInterfaceSource{VHostUser: &libvirtxml.DomainInterfaceSourceVHostUser{Dev: link}}
	out.Backend = &libvirtxml.DomainInterfaceBackend{Type: "passt", LogFile: log}
	out.PortForward, err = c.portForward(field, in.Ports)
	return err
}

// portForward lists the ports that passt forwards: all of both protocols if the
// spec names none. Those of a service mesh's proxy are left to the proxy.
func (c *Conversion) portForward(field string, ports []v1.Port) ([]libvirtxml.DomainInterfaceSourcePortForward, error) {
	named, err := c.portsByProtocol(field, ports)
	if err != nil {
		return nil, err
	}
	var out []libvirtxml.DomainInterfaceSourcePortForward
	for _, protocol := range []string{protocolTCP, protocolUDP} {
		if len(ports) > 0 && len(named[protocol]) == 0 {
			continue
		}
		forward := libvirtxml.DomainInterfaceSourcePortForward{Proto: protocol}
		if protocol == protocolTCP && strings.EqualFold(c.VMI.Annotations[istioAnnotation], "true") {
			for _, port := range istioPorts {
				forward.Ranges = append(forward.Ranges, libvirtxml.DomainInterfaceSourcePortForwardRange{Start: port, Exclude: "yes"})
			}
		}
		forward.Ranges = append(forward.Ranges, named[protocol]...)
		out = append(out, forward)
	}
	return out, nil
}

func (c *Conversion) portsByProtocol(field string, ports []v1.Port) (map[string][]libvirtxml.DomainInterfaceSourcePortForwardRange, error) {
	named := map[string][]libvirtxml.DomainInterfaceSourcePortForwardRange{}
	for i, p := range ports {
		field := fmt.Sprintf("%s.ports[%d]", field, i)
		protocol := cmp.Or(strings.ToLower(p.Protocol), protocolTCP)
		if protocol != protocolTCP && protocol != protocolUDP {
			return nil, c.Invalid(field+".protocol", fmt.Sprintf("%q is not forwarded by passt", p.Protocol), "use TCP or UDP")
		}
		if p.Port < 1 || p.Port > 65535 {
			return nil, c.Invalid(field+".port", fmt.Sprintf("%d is no port", p.Port), "use 1 to 65535")
		}
		named[protocol] = append(named[protocol], libvirtxml.DomainInterfaceSourcePortForwardRange{Start: uint(p.Port)})
	}
	return named, nil
}
