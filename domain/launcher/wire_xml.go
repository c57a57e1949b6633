// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// deviceTypes makes an empty device by its XML element.
var deviceTypes = map[string]func() domain.Device{
	"disk":       func() domain.Device { return &libvirtxml.DomainDisk{} },
	"interface":  func() domain.Device { return &libvirtxml.DomainInterface{} },
	"hostdev":    func() domain.Device { return &libvirtxml.DomainHostdev{} },
	"memory":     func() domain.Device { return &libvirtxml.DomainMemorydev{} },
	"input":      func() domain.Device { return &libvirtxml.DomainInput{} },
	"watchdog":   func() domain.Device { return &libvirtxml.DomainWatchdog{} },
	"serial":     func() domain.Device { return &libvirtxml.DomainSerial{} },
	"console":    func() domain.Device { return &libvirtxml.DomainConsole{} },
	"channel":    func() domain.Device { return &libvirtxml.DomainChannel{} },
	"controller": func() domain.Device { return &libvirtxml.DomainController{} },
	"filesystem": func() domain.Device { return &libvirtxml.DomainFilesystem{} },
	"rng":        func() domain.Device { return &libvirtxml.DomainRNG{} },
	"sound":      func() domain.Device { return &libvirtxml.DomainSound{} },
	"tpm":        func() domain.Device { return &libvirtxml.DomainTPM{} },
	"video":      func() domain.Device { return &libvirtxml.DomainVideo{} },
	"graphics":   func() domain.Device { return &libvirtxml.DomainGraphic{} },
	"vsock":      func() domain.Device { return &libvirtxml.DomainVSock{} },
	"redirdev":   func() domain.Device { return &libvirtxml.DomainRedirDev{} },
}

// deviceFromXML parses a device from its XML.
func deviceFromXML(text string) (domain.Device, error) {
	var root struct{ XMLName xml.Name }
	if err := xml.Unmarshal([]byte(text), &root); err != nil {
		return nil, fmt.Errorf("device: %w: %w", domain.ErrInvalid, err)
	}
	blank, known := deviceTypes[root.XMLName.Local]
	if !known {
		return nil, fmt.Errorf("device: the launcher does not support <%s>: %w", root.XMLName.Local, domain.ErrUnsupported)
	}
	d := blank()
	return d, unmarshalWhole("device", text, d)
}

// definitionFromXML parses a domain from its XML.
func definitionFromXML(text string) (*libvirtxml.Domain, error) {
	d := &libvirtxml.Domain{}
	return d, unmarshalWhole("definition", text, d)
}

// metadataFromXML parses virtloom's metadata from its XML.
func metadataFromXML(text string) (domain.Metadata, error) {
	m, ours, err := domain.ParseMetadata(text)
	if err != nil {
		return m, fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	if !ours {
		return m, fmt.Errorf("metadata: no element of %s: %w", domain.MetadataNamespace, domain.ErrInvalid)
	}
	again, err := m.XML()
	if err != nil {
		return m, err
	}
	return m, nothingLost("metadata", text, again)
}

// unmarshalWhole parses a document, and refuses one with unknown elements: an agent may be newer than its
// launcher, and a partial change is not the requested one.
func unmarshalWhole(what, text string, into libvirtxml.Document) error {
	if err := into.Unmarshal(text); err != nil {
		return fmt.Errorf("%s: %w: %w", what, domain.ErrInvalid, err)
	}
	again, err := into.Marshal()
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, domain.ErrInvalid, err)
	}
	return nothingLost(what, text, again)
}

// nothingLost compares the elements of the document with those that were parsed.
func nothingLost(what, sent, understood string) error {
	had, err := countXMLElements(sent)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, domain.ErrInvalid, err)
	}
	has, err := countXMLElements(understood)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, domain.ErrInvalid, err)
	}
	var lost []string
	for name, n := range had {
		if has[name] < n {
			lost = append(lost, name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	slices.Sort(lost)
	return fmt.Errorf("%s: the launcher does not support %s; update the launcher: %w", what, strings.Join(lost, ", "), domain.ErrUnsupported)
}

// countXMLElements counts the elements and attributes of a document by their paths.
func countXMLElements(text string) (map[string]int, error) {
	out := map[string]int{}
	dec := xml.NewDecoder(strings.NewReader(text))
	var path []string
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		switch t := tok.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			at := strings.Join(path, "/")
			out[at]++
			for _, a := range t.Attr {
				if a.Name.Space != "xmlns" && a.Name.Local != "xmlns" {
					out[at+"@"+a.Name.Local]++
				}
			}
		case xml.EndElement:
			path = path[:len(path)-1]
		}
	}
}
