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

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// MetadataNamespace is the XML namespace of the stored [Metadata].
const MetadataNamespace = "https://virtloom.dev/domain/v1"

const metadataElement = "guest"

// Metadata is the state that has to survive a restart of the node agent. It is stored in
// the domain's own metadata, so it exists exactly as long as the domain and migrates with
// it. Times have a precision of a microsecond.
type Metadata struct {
	// Namespace, Name and UID identify the VirtualMachineInstance.
	Namespace, Name string
	UID             types.UID
	// Epoch is the handoff epoch under which the domain was started or taken over.
	Epoch uint64
	// GraceDeadline is when a requested shutdown turns into a force-stop; nil if no
	// shutdown was requested.
	GraceDeadline *time.Time
	// ShutdownAt is when a shutdown was last requested, so that the request is repeated
	// after a while and not in every pass.
	ShutdownAt *time.Time
	// GracePeriod is the grace period with which the domain was started, for a domain whose
	// object is gone; nil if unknown.
	GracePeriod *time.Duration
	// MigrationUID is the UID of the migration to or from this domain; empty if there is
	// none.
	MigrationUID types.UID
	// Held says that the migration to or from this domain lets it arrive with its CPUs
	// stopped until its source has stored that the domain has left; see
	// [MigrationRequest.Paused].
	Held bool
	// Paused says that a user has paused the VMI.
	Paused bool
	// ResumedAt is when the domain was last resumed after a disk error, and ResumeDelay the
	// least time from then to the next attempt; nil and zero once it has run for a while.
	ResumedAt   *time.Time
	ResumeDelay time.Duration
	// ThawAt is when the guest's file systems are to be thawed at the latest; nil if they
	// were not frozen, or were frozen without a limit.
	ThawAt *time.Time
	// DiskBytes is the last known size of each disk, by the name of the volume.
	DiskBytes map[string]int64
	// LastApplied is the definition last applied to the domain, as XML; see [diff.Compare].
	// May be empty.
	LastApplied string
}

// Of returns the namespaced name of the VirtualMachineInstance.
func (m Metadata) Of() types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}

// metadataXML is the stored form of Metadata, metadataFields its content.
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

// XML returns the stored form: one element in [MetadataNamespace]. A character that XML
// cannot hold is [ErrInvalid].
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
		if r, bad := xmlspec.UnfitForXML(s); bad {
			return "", fmt.Errorf("metadata of %s: character %U is not allowed in XML: %w", m.Of(), r, ErrInvalid)
		}
	}
	b, err := xml.Marshal(metadataXML{metadataFields: x})
	if err != nil {
		return "", fmt.Errorf("metadata of %s: %w", m.Of(), err)
	}
	return string(b), nil
}

// ParseMetadata finds and parses the element of [MetadataNamespace] in the content of a
// domain's metadata element, or alone, whatever its prefix and its siblings. It returns
// false if there is no such element.
func ParseMetadata(s string) (Metadata, bool, error) {
	return parseMetadata(s, func(n xml.Name) bool { return n.Space == MetadataNamespace && n.Local == metadataElement })
}

// ParseMetadataElement is like [ParseMetadata], for an element that a hypervisor has looked
// up by its namespace and may have returned without it.
func ParseMetadataElement(s string) (Metadata, bool, error) {
	return parseMetadata(s, func(n xml.Name) bool { return n.Local == metadataElement })
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

// Clone returns a copy whose map can be changed without changing m.
func (m Metadata) Clone() Metadata {
	m.DiskBytes = maps.Clone(m.DiskBytes)
	return m
}

// stamp and unstamp convert a time to its stored form and back; nil is the empty string.
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

// MetadataOf parses the metadata of a domain; false if it has none of [MetadataNamespace].
func MetadataOf(d *libvirtxml.Domain) (Metadata, bool, error) {
	if d == nil || d.Metadata == nil {
		return Metadata{}, false, nil
	}
	return ParseMetadata(d.Metadata.XML)
}

// Put replaces all metadata of the domain by m.
func (m Metadata) Put(d *libvirtxml.Domain) error {
	s, err := m.XML()
	if err != nil {
		return err
	}
	d.Metadata = &libvirtxml.DomainMetadata{XML: s}
	return nil
}
