// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

const (
	// istioAnnotation requests the proxy of the Istio service mesh.
	istioAnnotation = "sidecar.istio.io/inject"

	protocolTCP = "tcp"
	protocolUDP = "udp"
)

// istioPorts are the ports of Istio's proxy in the Pod, documented in "Ports used by Istio". They
// cannot belong to the guest as well.
var istioPorts = []uint{15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090}

// passt connects an interface to passt, which libvirt starts and which forwards traffic of the
// Pod's link.
func (c interfacePass) passt(field string, in *v1.Interface, out *libvirtxml.DomainInterface) error {
	link := c.Facts.Links[in.Name].Passt
	if link == "" {
		return c.noNetwork(in.Name, "the node does not know the Pod's link for passt")
	}
	if len(in.PortRanges) > 0 {
		return c.Invalid(field+".portRanges", "Forbidden: only masquerade forwards port ranges", "list the ports in "+field+".ports")
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

// portForward lists the ports that passt forwards: all ports of both protocols if the spec lists
// none. Those of a service mesh's proxy are excluded.
func (c interfacePass) portForward(field string, ports []v1.Port) ([]libvirtxml.DomainInterfaceSourcePortForward, error) {
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

func (c interfacePass) portsByProtocol(field string, ports []v1.Port) (map[string][]libvirtxml.DomainInterfaceSourcePortForwardRange, error) {
	named := map[string][]libvirtxml.DomainInterfaceSourcePortForwardRange{}
	for i, p := range ports {
		field := fmt.Sprintf("%s.ports[%d]", field, i)
		protocol := cmp.Or(strings.ToLower(p.Protocol), protocolTCP)
		if protocol != protocolTCP && protocol != protocolUDP {
			return nil, c.Invalid(field+".protocol", fmt.Sprintf("Unsupported value: %q", p.Protocol), "use TCP or UDP")
		}
		if p.Port < 1 || p.Port > 65535 {
			return nil, c.Invalid(field+".port", fmt.Sprintf("Invalid value: %d", p.Port), "use 1 to 65535")
		}
		named[protocol] = append(named[protocol], libvirtxml.DomainInterfaceSourcePortForwardRange{Start: uint(p.Port)})
	}
	return named, nil
}
