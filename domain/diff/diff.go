// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Class is the earliest time at which a difference can be resolved.
type Class string

// The classes, from mild to severe.
const (
	// Live: the running domain can be changed. Difference.Operation does so if one operation is
	// enough.
	Live Class = "Live"
	// NeedsMigration: the change is invisible to the guest but needs a new QEMU process, which a
	// live migration provides.
	NeedsMigration Class = "NeedsMigration"
	// NextBoot: the change takes effect when the guest is shut down and started again.
	NextBoot Class = "NextBoot"
	// NeedsRecreation: the change would make it another machine; the object has to be recreated.
	NeedsRecreation Class = "NeedsRecreation"
)

// Difference is a difference between a running domain and the desired one.
type Difference struct {
	// Class is when it can be resolved, and Reason why not earlier.
	Class  Class
	Reason string
	// Field is the path in the VirtualMachineInstance, with names in place of list indexes:
	// spec.domain.devices.disks[root].serial.
	Field string
	// Want and Have are the two values in human-readable form. May be empty.
	Want, Have string
	// Operation resolves the difference if its class is Live. May be nil.
	Operation *domain.Operation
}

// String returns the difference in one line.
func (d Difference) String() string {
	return fmt.Sprintf("%s: have %q, want %q: %s: %s", d.Field, d.Have, d.Want, d.Class, d.Reason)
}

// Compare compares the desired domain with the running one, live. It is a three-way diff:
// lastApplied is the domain that was desired when the running one was last changed, nil if unknown;
// see [Stamp]. For values that a hypervisor rewrites, such as the model that host-model stands for,
// only a change between lastApplied and desired counts. For values that a hypervisor keeps as
// requested, the running domain counts, so that a device that was unplugged by hand is hotplugged
// again.
//
// desired must be converted with the [convert.Layout] of live, or every device appears to be moved.
// Devices are matched by alias, disks also by serial number, never by position or target name.
// Additions of the hypervisor are not differences. An empty result means that nothing is left to
// do. Otherwise, devices to detach come before devices to attach, which may reuse their name or
// port.
//
// Compare modifies none of the domains; operations may share memory with them. An error wraps
// [domain.ErrInvalid].
func Compare(desired, lastApplied, live *libvirtxml.Domain) ([]Difference, error) {
	switch {
	case errRules != nil:
		return nil, errRules
	case desired == nil || live == nil:
		return nil, fmt.Errorf("diff: a desired and a running domain are required: %w", domain.ErrInvalid)
	case desired.Name != live.Name:
		return nil, fmt.Errorf("diff: domain %s cannot be compared with %s: %w", desired.Name, live.Name, domain.ErrInvalid)
	}
	c := compareDomains(desired, lastApplied, live)
	if !c.byWish {
		return c.found, nil
	}
	// Only one of the domains was parsed from XML. Encode and parse the others as well, so that
	// empty elements and alternative spellings make no difference.
	// The first comparison works on the values as they are, which is cheap, and enough for almost every
	// pass: nothing differs. What was only found between desired and lastApplied may be an artefact.
	want, err := through(desired)
	if err != nil {
		return nil, err
	}
	last, err := through(lastApplied)
	if err != nil {
		return nil, err
	}
	return compareDomains(want, last, live).found, nil
}

// compareDomains implements Compare for domains of the same guest.
func compareDomains(want, last, live *libvirtxml.Domain) *comparison {
	c := &comparison{name: want.Name, want: want, last: last, live: live}
	// The order of these calls is the order of the result for differences of equal turn: what makes
	// it another machine comes first, as a user who reads one line only should read that one.
	c.machine()
	w := c.walk("")
	w.compare(ruleTree, tripleOf(want, last, live))
	c.memory()
	c.cpus()
	c.wanted, c.had, c.runs = deviceLists(want), deviceLists(last), deviceLists(live)
	c.disks()
	c.interfaces()
	c.hostDevices()
	// Detach before attach: a device that was renamed in the spec is one to detach and one to attach,
	// and the new one may claim the target name or the PCI port of the old one.
	slices.SortStableFunc(c.found, func(a, b Difference) int { return cmp.Compare(a.turn(), b.turn()) })
	return c
}

// turn is the position of an operation in the order of execution.
func (d *Difference) turn() int {
	if d.Operation == nil {
		return 1
	}
	switch d.Operation.Verb {
	case domain.DetachDevice:
		return 0
	case domain.AttachDevice:
		return 2
	}
	return 1
}

// Stamp stores the domain in its own metadata as the last applied one, for [LastApplied]. It must
// be the last change before the domain is started.
func Stamp(d *libvirtxml.Domain) error {
	m, ours, err := domain.MetadataOf(d)
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("domain %s has no virtloom metadata: %w", d.Name, domain.ErrInvalid)
	}
	// Without its own metadata: the stamp would contain the previous stamp, and that the one before,
	// and the definition would double with each change.
	bare := *d
	bare.Metadata = nil
	s, err := bare.Marshal()
	if err != nil {
		return fmt.Errorf("domain %s: %w", d.Name, err)
	}
	// The definition is stored in the domain rather than beside it: it migrates with the domain, and
	// cannot be older or newer than what it describes, whatever crashes in between.
	m.LastApplied = s
	return m.Put(d)
}

// LastApplied returns the domain that [Stamp] stored, nil if there is none.
func LastApplied(m domain.Metadata) (*libvirtxml.Domain, error) {
	if m.LastApplied == "" {
		return nil, nil
	}
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(m.LastApplied); err != nil {
		return nil, fmt.Errorf("parsing last applied domain of %s: %w", m.Of(), err)
	}
	return d, nil
}

// comparison is a Compare in progress. last may be nil.
type comparison struct {
	name             string
	want, last, live *libvirtxml.Domain
	// wanted, had and runs are the devices of want, last and live; never nil.
	wanted, had, runs *libvirtxml.DomainDeviceList
	found             []Difference
	// byWish says that a difference between want and last was found.
	byWish bool
}

func deviceLists(d *libvirtxml.Domain) *libvirtxml.DomainDeviceList {
	if d == nil || d.Devices == nil {
		return &libvirtxml.DomainDeviceList{}
	}
	return d.Devices
}

// walk starts a comparison of parts; device is the field of the device they belong to.
func (c *comparison) walk(device string) *walk {
	return &walk{c: c, device: device}
}

// tripleOf returns the triple at which a walk starts; last and live may be nil.
func tripleOf[T any](want, last, live *T) triple {
	v := triple{want: reflect.ValueOf(want).Elem()}
	if last != nil {
		v.last = reflect.ValueOf(last).Elem()
	}
	if live != nil {
		v.live = reflect.ValueOf(live).Elem()
	}
	return v
}

// add records a difference.
func (c *comparison) add(class Class, field, want, have, reason string) *Difference {
	c.found = append(c.found, Difference{Class: class, Field: field, Want: want, Have: have, Reason: reason})
	return &c.found[len(c.found)-1]
}

// text records a difference between two strings.
func (c *comparison) text(class Class, field, want, have, reason string) {
	if want != have {
		c.add(class, field, want, have, reason)
	}
}

// number records a difference between two numbers.
func (c *comparison) number(class Class, field string, want, have uint, reason string) {
	c.text(class, field, strconv.FormatUint(uint64(want), 10), strconv.FormatUint(uint64(have), 10), reason)
}

// operate sets the operation that resolves a difference.
func (c *comparison) operate(d *Difference, verb domain.Verb, dev domain.Device) {
	// Operations are addressed by name of the domain and alias of the device. Between Compare and
	// Apply the domain may change, so Apply has to succeed if the result is there already.
	d.Operation = &domain.Operation{Verb: verb, Domain: c.name, Device: dev}
}

// through copies a domain by encoding and parsing it; nil stays nil.
func through(d *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	if d == nil {
		return nil, nil
	}
	s, err := d.Marshal()
	if err != nil {
		return nil, fmt.Errorf("diff: %w", errors.Join(domain.ErrInvalid, err))
	}
	out := &libvirtxml.Domain{}
	if err := out.Unmarshal(s); err != nil {
		return nil, fmt.Errorf("diff: %w", errors.Join(domain.ErrInvalid, err))
	}
	return out, nil
}
