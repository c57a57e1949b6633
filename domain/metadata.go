// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
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
	// GracePeriod is how long the guest was granted to shut down when it was started,
	// for when its object is gone; nil if that is not known. Whole nanoseconds.
	GracePeriod *time.Duration
	// MigrationUID is the migration that brings or takes this guest; empty if
	// there is none.
	MigrationUID types.UID
	// Held says that the migration that brings or takes this guest lets it arrive with
	// its CPUs stopped, until its source has stored that it has left; see
	// [MigrationRequest.Paused].
	Held bool
	// Paused says that the guest stands still because a user asked for it.
	Paused bool
	// ResumedAt is when the guest was last resumed after an error of a disk, and
	// ResumeDelay how long after that it is resumed again at the earliest; nil and
	// zero once it has run for a while. Whole microseconds are kept.
	ResumedAt   *time.Time
	ResumeDelay time.Duration
	// ThawAt is when the guest's file systems are to be thawed if nobody has done so
	// before; nil if they were not frozen, or without a limit. Whole microseconds.
	ThawAt *time.Time
	// DiskBytes is how large each disk was known to be, by the name of the volume.
	DiskBytes map[string]int64
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
	Namespace     string    `xml:"namespace"`
	Name          string    `xml:"name"`
	UID           string    `xml:"uid"`
	Epoch         uint64    `xml:"epoch"`
	GraceDeadline string    `xml:"graceDeadline,omitempty"`
	ShutdownAt    string    `xml:"shutdownAt,omitempty"`
	GracePeriod   string    `xml:"gracePeriod,omitempty"`
	MigrationUID  string    `xml:"migrationUID,omitempty"`
	Held          bool      `xml:"held,omitempty"`
	Paused        bool      `xml:"paused,omitempty"`
	ResumedAt     string    `xml:"resumedAt,omitempty"`
	ResumeDelay   string    `xml:"resumeDelay,omitempty"`
	ThawAt        string    `xml:"thawAt,omitempty"`
	Disks         []diskXML `xml:"disk"`
	LastApplied   string    `xml:"lastApplied,omitempty"`
}

// diskXML is an entry of Metadata.DiskBytes.
type diskXML struct {
	Name  string `xml:"name,attr"`
	Bytes int64  `xml:"bytes,attr"`
}

// XML returns the stored form: one element in [MetadataNamespace]. Characters
// XML cannot hold are an error, never dropped.
func (m Metadata) XML() (string, error) {
	x := metadataFields{
		Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), Epoch: m.Epoch,
		GraceDeadline: stamp(m.GraceDeadline), ShutdownAt: stamp(m.ShutdownAt),
		MigrationUID: string(m.MigrationUID), Held: m.Held, Paused: m.Paused,
		ResumedAt: stamp(m.ResumedAt), ThawAt: stamp(m.ThawAt), LastApplied: m.LastApplied,
	}
	if m.GracePeriod != nil {
		x.GracePeriod = m.GracePeriod.String()
	}
	if m.ResumeDelay != 0 {
		x.ResumeDelay = m.ResumeDelay.String()
	}
	texts := []string{x.Namespace, x.Name, x.UID, x.MigrationUID, x.LastApplied}
	for _, name := range slices.Sorted(maps.Keys(m.DiskBytes)) {
		x.Disks = append(x.Disks, diskXML{name, m.DiskBytes[name]})
		texts = append(texts, name)
	}
	for _, s := range texts {
		if r, bad := unfitForXML(s); bad {
			return "", fmt.Errorf("metadata of %s: character %U does not fit into XML: %w", m.Of(), r, ErrInvalid)
		}
	}
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
		MigrationUID: types.UID(x.MigrationUID), Held: x.Held, Paused: x.Paused, LastApplied: x.LastApplied,
	}
	for _, d := range x.Disks {
		if m.DiskBytes == nil {
			m.DiskBytes = map[string]int64{}
		}
		m.DiskBytes[d.Name] = d.Bytes
	}
	if err := decodeTimes(&m, x); err != nil {
		return Metadata{}, false, fmt.Errorf("domain metadata: %w", err)
	}
	return m, true, nil
}

func decodeTimes(m *Metadata, x metadataFields) error {
	var bad [6]error
	m.GraceDeadline, bad[0] = unstamp(x.GraceDeadline)
	m.ShutdownAt, bad[1] = unstamp(x.ShutdownAt)
	m.ResumedAt, bad[2] = unstamp(x.ResumedAt)
	m.ThawAt, bad[3] = unstamp(x.ThawAt)
	if x.GracePeriod != "" {
		period, err := time.ParseDuration(x.GracePeriod)
		m.GracePeriod, bad[4] = &period, err
	}
	if x.ResumeDelay != "" {
		m.ResumeDelay, bad[5] = time.ParseDuration(x.ResumeDelay)
	}
	return errors.Join(bad[:]...)
}

// clone copies the metadata, so that a change of the copy is none of the original.
func (m Metadata) clone() Metadata {
	m.DiskBytes = maps.Clone(m.DiskBytes)
	return m
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
