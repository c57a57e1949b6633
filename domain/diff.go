// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"libvirt.org/go/libvirtxml"
)

// Class says when a difference can go away.
type Class string

// The classes, from mild to severe.
const (
	// Live: the running domain can be changed; Difference.Operation does it,
	// where one operation is enough.
	Live Class = "Live"
	// NeedsMigration: the guest would not notice, but only a new QEMU process
	// can have it, which a live migration brings.
	NeedsMigration Class = "NeedsMigration"
	// NextBoot: the guest has it after it was shut down and started anew.
	NextBoot Class = "NextBoot"
	// NeedsRecreation: it would be another machine; the object has to be made
	// anew.
	NeedsRecreation Class = "NeedsRecreation"
)

// Difference is one way in which a running domain is not what it should be.
type Difference struct {
	// Class tells when it can go away, and Reason why not sooner.
	Class  Class
	Reason string
	// Field is the path in the VirtualMachineInstance it comes from, with names
	// in place of list positions: spec.domain.devices.disks[root].serial.
	Field string
	// Want and Have are the two values for people to read; may be empty.
	Want, Have string
	// Operation makes the difference go away, for class Live; may be nil.
	Operation *Operation
}

// String is the difference in one line.
func (d Difference) String() string {
	return fmt.Sprintf("%s: have %q, want %q: %s: %s", d.Field, d.Have, d.Want, d.Class, d.Reason)
}

// Diff compares the wanted domain with the running one. lastApplied is what was
// wanted when the running one was made, or nil if that is not known; see [Stamp].
// It decides about everything that a hypervisor rewrites, such as the model
// host-model stands for: there, what counts is whether the wish has changed. The
// running domain decides about what a hypervisor leaves as it was asked for, so that
// a device somebody has unplugged by hand is plugged again.
//
// desired has to be converted with the [Layout] of live, or each device counts as
// moved. Devices are matched by alias, disks by serial number as well, never by
// position or target name. What the hypervisor added by itself is no difference. No
// differences means that nothing has to be done. Otherwise, devices that go come
// before those that come and may take over their name or port.
//
// None of the domains is changed; operations may share memory with them.
func Diff(desired, lastApplied, live *libvirtxml.Domain) ([]Difference, error) {
	switch {
	case errRules != nil:
		return nil, errRules
	case desired == nil || live == nil:
		return nil, fmt.Errorf("diff: needs a wanted and a running domain: %w", ErrInvalid)
	case desired.Name != live.Name:
		return nil, fmt.Errorf("diff: %s is not %s: %w", desired.Name, live.Name, ErrInvalid)
	}
	c := compare(desired, lastApplied, live)
	if !c.byWish {
		return c.found, nil
	}
	// One wish was made, the other one read. Both take the same way through XML, so
	// that no empty element or other spelling makes a difference.
	want, err := through(desired)
	if err != nil {
		return nil, err
	}
	last, err := through(lastApplied)
	if err != nil {
		return nil, err
	}
	return compare(want, last, live).found, nil
}

// compare is Diff for domains that can be compared.
func compare(want, last, live *libvirtxml.Domain) *comparison {
	c := &comparison{name: want.Name, want: want, last: last, live: live}
	c.machine()
	w := c.walk("")
	w.compare(ruleTree, tripleOf(want, last, live))
	c.memory()
	c.cpus()
	c.wanted, c.had, c.runs = deviceLists(want), deviceLists(last), deviceLists(live)
	c.disks()
	c.interfaces()
	c.hostDevices()
	slices.SortStableFunc(c.found, func(a, b Difference) int { return cmp.Compare(a.turn(), b.turn()) })
	return c
}

// turn is when an operation has its turn: what goes first, what comes last.
func (d *Difference) turn() int {
	if d.Operation == nil {
		return 1
	}
	switch d.Operation.Verb {
	case DetachDevice:
		return 0
	case AttachDevice:
		return 2
	}
	return 1
}

// Stamp stores the domain in its own metadata as what was last applied, so that
// whoever finds it running knows. It has to be the last change before Start.
func Stamp(d *libvirtxml.Domain) error {
	m, ours, err := MetadataOf(d)
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("domain %s: no metadata of ours: %w", d.Name, ErrInvalid)
	}
	bare := *d
	bare.Metadata = nil
	s, err := bare.Marshal()
	if err != nil {
		return fmt.Errorf("domain %s: %w", d.Name, err)
	}
	m.LastApplied = s
	return PutMetadata(d, m)
}

// LastApplied returns what [Stamp] has stored; nil if it has not.
func LastApplied(m Metadata) (*libvirtxml.Domain, error) {
	if m.LastApplied == "" {
		return nil, nil
	}
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(m.LastApplied); err != nil {
		return nil, fmt.Errorf("last applied domain of %s: %w", m.Of(), err)
	}
	return d, nil
}

// comparison is a Diff under way. last may be nil.
type comparison struct {
	name             string
	want, last, live *libvirtxml.Domain
	// wanted, had and runs are their devices; never nil.
	wanted, had, runs *libvirtxml.DomainDeviceList
	found             []Difference
	// byWish says that a difference was found between two wishes.
	byWish bool
}

func deviceLists(d *libvirtxml.Domain) *libvirtxml.DomainDeviceList {
	if d == nil || d.Devices == nil {
		return &libvirtxml.DomainDeviceList{}
	}
	return d.Devices
}

// walk begins to compare parts; device is the field of the device they belong to.
func (c *comparison) walk(device string) *walk {
	return &walk{c: c, device: device}
}

// tripleOf is what a walk begins with; last and live may be nil.
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

// add notes a difference.
func (c *comparison) add(class Class, field, want, have, reason string) *Difference {
	c.found = append(c.found, Difference{Class: class, Field: field, Want: want, Have: have, Reason: reason})
	return &c.found[len(c.found)-1]
}

// text notes a difference between two texts.
func (c *comparison) text(class Class, field, want, have, reason string) {
	if want != have {
		c.add(class, field, want, have, reason)
	}
}

// number notes a difference between two numbers.
func (c *comparison) number(class Class, field string, want, have uint, reason string) {
	c.text(class, field, strconv.FormatUint(uint64(want), 10), strconv.FormatUint(uint64(have), 10), reason)
}

// operate gives a difference the operation that ends it.
func (c *comparison) operate(d *Difference, verb Verb, dev Device) {
	d.Operation = &Operation{Verb: verb, Domain: c.name, Device: dev}
}

// through copies a domain by way of its XML; nil stays nil.
func through(d *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	if d == nil {
		return nil, nil
	}
	s, err := d.Marshal()
	if err != nil {
		return nil, fmt.Errorf("diff: %w", errors.Join(ErrInvalid, err))
	}
	out := &libvirtxml.Domain{}
	if err := out.Unmarshal(s); err != nil {
		return nil, fmt.Errorf("diff: %w", errors.Join(ErrInvalid, err))
	}
	return out, nil
}
