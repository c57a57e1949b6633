// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// MetadataNamespace is the XML namespace of what we store in a domain;
// MetadataPrefix and MetadataElement are the prefix and the element name used.
const (
	MetadataNamespace = "https://virtloom.dev/domain/v1"
	MetadataPrefix    = "virtloom"
	MetadataElement   = "guest"
)

// Metadata is what has to survive a restart of the node agent. It is stored in
// the domain's own metadata, so it lives exactly as long as the domain and
// moves with it.
type Metadata struct {
	// Namespace, Name and UID say which VirtualMachineInstance this is.
	Namespace, Name string
	UID             types.UID
	// Epoch is the handoff epoch under which the domain was started or taken
	// over.
	Epoch uint64
	// GraceDeadline is when a shutdown that was asked for turns into a kill; nil
	// if none was asked for. Whole microseconds are kept.
	GraceDeadline *time.Time
	// ShutdownAt is when the guest was last asked to shut down, so that it is
	// asked again in time and not at every look. Whole microseconds are kept.
	ShutdownAt *time.Time
	// MigrationUID is the migration that brings or takes this guest; empty if
	// there is none.
	MigrationUID types.UID
	// Paused says that the guest stands still because a user asked for it.
	Paused bool
	// LastApplied is the definition last brought to the domain, as XML; see
	// [Diff]. May be empty.
	LastApplied string
}

// Of returns the namespaced name of the VirtualMachineInstance.
func (m Metadata) Of() types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}

// metadataXML is the stored form; metadataFields what is in it.
type metadataXML struct {
	XMLName xml.Name `xml:"https://virtloom.dev/domain/v1 guest"`
	metadataFields
}

type metadataFields struct {
	Namespace     string `xml:"namespace"`
	Name          string `xml:"name"`
	UID           string `xml:"uid"`
	Epoch         uint64 `xml:"epoch"`
	GraceDeadline string `xml:"graceDeadline,omitempty"`
	ShutdownAt    string `xml:"shutdownAt,omitempty"`
	MigrationUID  string `xml:"migrationUID,omitempty"`
	Paused        bool   `xml:"paused,omitempty"`
	LastApplied   string `xml:"lastApplied,omitempty"`
}

// XML returns the stored form: one element in [MetadataNamespace]. Characters
// XML cannot hold are an error, never dropped.
func (m Metadata) XML() (string, error) {
	for _, s := range []string{m.Namespace, m.Name, string(m.UID), string(m.MigrationUID), m.LastApplied} {
		if r, bad := unfitForXML(s); bad {
			return "", fmt.Errorf("metadata of %s: character %U does not fit into XML: %w", m.Of(), r, ErrInvalid)
		}
	}
	x := metadataFields{
		Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), Epoch: m.Epoch,
		MigrationUID: string(m.MigrationUID), Paused: m.Paused, LastApplied: m.LastApplied,
	}
	x.GraceDeadline, x.ShutdownAt = stamp(m.GraceDeadline), stamp(m.ShutdownAt)
	b, err := xml.Marshal(metadataXML{metadataFields: x})
	if err != nil {
		return "", fmt.Errorf("metadata of %s: %w", m.Of(), err)
	}
	return string(b), nil
}

// ParseMetadata reads our element out of the content of a metadata element, or
// out of the element alone, whatever else is beside it and whatever prefix it
// has. false: there is nothing of ours.
func ParseMetadata(s string) (Metadata, bool, error) {
	return parseMetadata(s, func(n xml.Name) bool { return n.Space == MetadataNamespace && n.Local == MetadataElement })
}

// ParseMetadataElement is [ParseMetadata] for an element that a hypervisor has
// found by its namespace already, and may have returned without one.
func ParseMetadataElement(s string) (Metadata, bool, error) {
	return parseMetadata(s, func(n xml.Name) bool { return n.Local == MetadataElement })
}

func parseMetadata(s string, ours func(xml.Name) bool) (Metadata, bool, error) {
	dec := xml.NewDecoder(strings.NewReader(s))
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return Metadata{}, false, nil
		}
		if err != nil {
			return Metadata{}, false, fmt.Errorf("domain metadata: %w", err)
		}
		start, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		if ours(start.Name) {
			return decodeMetadata(dec, &start)
		}
		if start.Name.Local == "metadata" {
			continue
		}
		if err := dec.Skip(); err != nil {
			return Metadata{}, false, fmt.Errorf("domain metadata: %w", err)
		}
	}
}

func decodeMetadata(dec *xml.Decoder, start *xml.StartElement) (Metadata, bool, error) {
	var x metadataFields
	if err := dec.DecodeElement(&x, start); err != nil {
		return Metadata{}, false, fmt.Errorf("domain metadata: %w", err)
	}
	m := Metadata{
		Namespace: x.Namespace, Name: x.Name, UID: types.UID(x.UID), Epoch: x.Epoch,
		MigrationUID: types.UID(x.MigrationUID), Paused: x.Paused, LastApplied: x.LastApplied,
	}
	var bad [2]error
	m.GraceDeadline, bad[0] = unstamp(x.GraceDeadline)
	m.ShutdownAt, bad[1] = unstamp(x.ShutdownAt)
	if err := errors.Join(bad[:]...); err != nil {
		return Metadata{}, false, fmt.Errorf("domain metadata: %w", err)
	}
	return m, true, nil
}

// stamp and unstamp store a time; no time is the empty string.
func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
}

func unstamp(s string) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return &t, err
}

// MetadataOf reads our metadata from a domain. false: there is none.
func MetadataOf(d *libvirtxml.Domain) (Metadata, bool, error) {
	if d == nil || d.Metadata == nil {
		return Metadata{}, false, nil
	}
	return ParseMetadata(d.Metadata.XML)
}

// PutMetadata replaces what the domain carries as metadata by m alone.
func PutMetadata(d *libvirtxml.Domain, m Metadata) error {
	s, err := m.XML()
	if err != nil {
		return err
	}
	d.Metadata = &libvirtxml.DomainMetadata{XML: s}
	return nil
}

// unfitForXML finds the first character that XML 1.0 cannot hold.
func unfitForXML(s string) (rune, bool) {
	for i, r := range s {
		if r == 0xFFFD && !strings.HasPrefix(s[i:], "\uFFFD") {
			return r, true
		}
		if !unicode.Is(xmlCharacters, r) {
			return r, true
		}
	}
	return 0, false
}

// xmlCharacters are those XML 1.0 has (production Char).
var xmlCharacters = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x9, Hi: 0xA, Stride: 1}, {Lo: 0xD, Hi: 0xD, Stride: 1}, {Lo: 0x20, Hi: 0xD7FF, Stride: 1}, {Lo: 0xE000, Hi: 0xFFFD, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x10000, Hi: 0x10FFFF, Stride: 1}},
}
