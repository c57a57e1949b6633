// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// rule says what a difference in one part of a domain means.
type rule struct {
	// class is when it can go away; empty for parts that do not count, because
	// another rule decides about them or a node decides and not the spec.
	class Class
	// field is the path in the VirtualMachineInstance: absolute, or beginning with
	// a dot relative to the device. Empty is the libvirt element.
	field string
	// reason tells why it cannot go away sooner.
	reason string
	// live says that the running domain shows it as it was wished; else it is
	// compared with the last wish. exact says that what the wish leaves out must be
	// missing there, too.
	live, exact bool
	// fold says that upper and lower case are the same.
	fold bool
}

const (
	otherMachine = "the guest would be another machine"
	fixedAtStart = "is fixed when the guest starts"
	seenByGuest  = "the guest has seen the device as it is"
	volumeInUse  = "a disk in use changes its volume only by migration"
	readAtBoot   = "is read when the guest starts"
	ofTheProcess = "is a setting of the QEMU process"
)

// nothing is a part that does not count by itself.
var nothing = rule{}

func boots(field string) rule { return rule{class: NextBoot, field: field, reason: fixedAtStart} }
func shown(field string) rule {
	return rule{class: NextBoot, field: field, reason: seenByGuest, live: true}
}
func strict(field string) rule { r := shown(field); r.exact = true; return r }
func moves(field string) rule {
	return rule{class: NeedsMigration, field: field, reason: ofTheProcess, live: true}
}

// ruleTable holds the rules by path in a libvirtxml.Domain. A rule goes for all that
// is below its path, unless there is one of its own. What has none, because it is
// new, is compared with the last wish and counts from the next boot on.
var ruleTable = map[string]rule{
	"":         {class: NextBoot, reason: fixedAtStart},
	"ID":       nothing,
	"Name":     nothing,
	"Metadata": nothing,
	"Type":     {class: NeedsRecreation, field: "domain.type", reason: "KVM and software emulation cannot take over from each other", live: true},
	"UUID":     {class: NeedsRecreation, field: specDomain + "firmware.uuid", reason: otherMachine, live: true, fold: true},
	// Sizes and numbers of CPUs: see memory and cpus.
	"Memory": nothing, "CurrentMemory": nothing, "VCPU": nothing, "VCPUs": nothing,
	"MaximumMemory":   boots(specDomain + "memory.maxGuest"),
	"MemoryBacking":   boots(specDomain + "memory.hugepages"),
	"IOThreads":       boots(specDomain + "ioThreads"),
	"IOThreadIDs":     boots(specDomain + "ioThreads"),
	"DefaultIOThread": boots(specDomain + "ioThreads"),
	"CPUTune":         boots(specDomain + "cpu.dedicatedCpuPlacement"),
	"NUMATune":        boots(specDomain + "cpu.numa"),
	"SysInfo":         boots(specDomain + "firmware"),
	"OS":              boots(specDomain + "firmware"),
	"OS.Type":         nothing, // see machine
	"OS.Loader":       boots(specDomain + "firmware.bootloader"),
	"OS.NVRam":        boots(specDomain + "firmware.bootloader"),
	"OS.Kernel":       {class: NextBoot, field: specDomain + "firmware.kernelBoot.container.kernelPath", reason: readAtBoot, live: true, exact: true},
	"OS.Initrd":       {class: NextBoot, field: specDomain + "firmware.kernelBoot.container.initrdPath", reason: readAtBoot, live: true, exact: true},
	"OS.Cmdline":      {class: NextBoot, field: specDomain + "firmware.kernelBoot.kernelArgs", reason: readAtBoot, live: true, exact: true},
	"OS.BootMenu":     boots("spec.startStrategy"),
	"Features":        boots(specDomain + "features"),
	"Clock":           boots(specDomain + "clock"),
	"OnReboot":        boots(specDomain + "rebootPolicy"),
	"LaunchSecurity":  boots(specDomain + "launchSecurity"),

	"CPU":                       boots(specDomain + "cpu"),
	"CPU.Mode":                  boots(specDomain + "cpu.model"),
	"CPU.Match":                 boots(specDomain + "cpu.model"),
	"CPU.Model":                 boots(specDomain + "cpu.model"),
	"CPU.Features":              boots(specDomain + "cpu.features"),
	"CPU.Topology.Sockets":      nothing, // see cpus
	"CPU.Topology.Cores":        {class: NextBoot, field: specDomain + "cpu.cores", reason: "the topology " + fixedAtStart, live: true},
	"CPU.Topology.Threads":      {class: NextBoot, field: specDomain + "cpu.threads", reason: "the topology " + fixedAtStart, live: true},
	"CPU.Numa":                  boots(specDomain + "cpu.numa"),
	"CPU.Numa.Cell.CPUs":        nothing, // follows from their number
	"CPU.Numa.Cell.Memory":      nothing, // follows from the memory of the guest
	"CPU.Numa.Cell.Unit":        nothing,
	"Devices.Emulator":          nothing, // where the node has it
	"Devices.Controllers":       boots(""),
	"Devices.Controllers.USB":   nothing, // never set, but there once it was read
	"Devices.Controllers.Alias": nothing,
	// Buses of PCI follow from the devices, and from those the guest was started with.
	"Devices.Controllers.PCI":          nothing,
	"Devices.Controllers.PCI.Hole64":   boots("metadata.annotations[kubevirt.io/disablePCIHole64]"),
	"Devices.Controllers.VirtIOSerial": nothing,
	"Devices.Serials":                  boots(specDevices + "autoattachSerialConsole"),
	"Devices.Consoles":                 boots(specDevices + "autoattachSerialConsole"),
	"Devices.Serials.Log":              boots(specDevices + "logSerialConsole"),
	"Devices.Graphics":                 boots(specDevices + "autoattachGraphicsDevice"),
	"Devices.Videos":                   boots(specDevices + "video"),
	"Devices.Inputs":                   boots(specDevices + "inputs"),
	"Devices.RNGs":                     boots(specDevices + "rng"),
	"Devices.MemBalloon":               boots(specDevices + "autoattachMemBalloon"),
	"Devices.Watchdogs":                boots(specDevices + "watchdog"),
	"Devices.Panics":                   boots(specDevices + "panicDevices"),
	"Devices.Sounds":                   boots(specDevices + "sound"),
	"Devices.TPMs":                     boots(specDevices + "tpm"),
	"Devices.VSock":                    boots(specDevices + "autoattachVSOCK"),
	"Devices.VSock.CID":                nothing, // handed out by a node
	"Devices.RedirDevs":                boots(specDevices + "clientPassthrough"),
	"Devices.Filesystems":              boots(specDevices + "filesystems"),
	"Devices.Memorydevs":               nothing, // see memory

	"Devices.Disks":                    boots("."),
	"Devices.Disks.Device":             strict("."),
	"Devices.Disks.Driver.Type":        moves(".format"),
	"Devices.Disks.Driver.Cache":       moves(".cache"),
	"Devices.Disks.Driver.IO":          moves(".io"),
	"Devices.Disks.Driver.ErrorPolicy": moves(".errorPolicy"),
	"Devices.Disks.Driver.Discard":     moves(".discard"),
	"Devices.Disks.Driver.Queues":      boots(specDevices + "blockMultiQueue"),
	// Which thread serves a disk follows from the other disks.
	"Devices.Disks.Driver.IOThread":  nothing,
	"Devices.Disks.Driver.IOThreads": nothing,
	"Devices.Disks.Source":           boots(".volume"),
	"Devices.Disks.Source.File":      nothing, // see source
	"Devices.Disks.Source.Block":     nothing,
	"Devices.Disks.BackingStore":     {class: NeedsMigration, field: ".volume", reason: volumeInUse},
	"Devices.Disks.BlockIO":          boots(".blockSize"),
	"Devices.Disks.Target.Bus":       shown(".bus"),
	"Devices.Disks.Target.Dev":       nothing, // no name the guest knows
	"Devices.Disks.Target.Tray":      boots(".tray"),
	"Devices.Disks.Serial":           strict(".serial"),
	"Devices.Disks.ReadOnly":         strict(".readonly"),
	"Devices.Disks.Shareable":        strict(".shareable"),
	"Devices.Disks.Boot":             {class: NextBoot, field: ".bootOrder", reason: readAtBoot, live: true, exact: true},
	"Devices.Disks.Alias":            nothing,

	"Devices.Interfaces":                boots("."),
	"Devices.Interfaces.MAC":            {class: NextBoot, field: ".macAddress", reason: seenByGuest, live: true, fold: true},
	"Devices.Interfaces.Model":          shown(".model"),
	"Devices.Interfaces.Boot":           {class: NextBoot, field: ".bootOrder", reason: readAtBoot, live: true, exact: true},
	"Devices.Interfaces.Source":         boots(".network"),
	"Devices.Interfaces.Source.Bridge":  nothing, // see networkCard
	"Devices.Interfaces.Link":           nothing,
	"Devices.Interfaces.Target":         nothing, // what the node has for it
	"Devices.Interfaces.MTU":            nothing,
	"Devices.Interfaces.Driver.Queues":  boots(specDevices + "networkInterfaceMultiqueue"),
	"Devices.Interfaces.PortForward":    boots(".ports"),
	"Devices.Interfaces.Backend":        boots(".binding"),
	"Devices.Interfaces.ACPI":           boots(".acpiIndex"),
	"Devices.Interfaces.Alias":          nothing,
	"Devices.Hostdevs":                  boots("."),
	"Devices.Hostdevs.SubsysPCI.Source": nothing, // which one was handed to the guest
	// Mediated and USB devices likewise.
	"Devices.Hostdevs.SubsysMDev.Source": nothing,
	"Devices.Hostdevs.SubsysUSB.Source":  nothing,
	"Devices.Hostdevs.Boot":              {class: NextBoot, field: ".bootOrder", reason: readAtBoot, live: true, exact: true},
	"Devices.Hostdevs.Alias":             nothing,
}

// node is a part of a domain with the rule for it.
type node struct {
	rule rule
	// below are the parts by field, nil where the same rule goes for all of them.
	below []*node
	// rest is for the fields that are nil in below.
	rest *node
	// live and exact tell whether any rule here or below is; own that the part is
	// compared device by device.
	live, exact, own bool
}

// ruleTree is ruleTable in the form of a domain.
var ruleTree, errRules = compileRules(ruleTable)

// ownLists are compared device by device.
var ownLists = map[string]bool{
	"Devices.Disks": true, "Devices.Interfaces": true, "Devices.Hostdevs": true, "Devices.Memorydevs": true,
}

// compileRules refuses paths that a domain does not have.
func compileRules(table map[string]rule) (*node, error) {
	root := &node{rule: table[""]}
	paths := slices.SortedFunc(maps.Keys(table), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), cmp.Compare(a, b))
	})
	for _, path := range paths { // shorter ones first: their rule goes for what is below
		if path == "" {
			continue
		}
		at, err := root.find(path)
		if err != nil {
			return nil, err
		}
		at.rule, at.own = table[path], ownLists[path]
	}
	root.finish()
	return root, nil
}

// find returns the node of a path, and makes those on the way.
func (n *node) find(path string) (*node, error) {
	t := reflect.TypeFor[libvirtxml.Domain]()
	for _, name := range strings.Split(path, ".") {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		f, ok := t.FieldByName(name)
		if !ok || len(f.Index) != 1 {
			return nil, fmt.Errorf("rule for %s: a %s has no %s", path, t.Name(), name)
		}
		if n.below == nil {
			n.below = make([]*node, t.NumField())
		}
		next := n.below[f.Index[0]]
		if next == nil {
			next = &node{rule: n.rule}
			n.below[f.Index[0]] = next
		}
		n, t = next, f.Type
	}
	return n, nil
}

// finish sums up what is below.
func (n *node) finish() {
	n.live, n.exact = n.rule.live, n.rule.exact
	n.rest = &node{rule: n.rule, live: n.rule.live, exact: n.rule.exact}
	for _, next := range n.below {
		if next != nil {
			next.finish()
			n.live, n.exact = n.live || next.live, n.exact || next.exact
		}
	}
}

// child returns the rules of a field.
func (n *node) child(field int) *node {
	if n.below == nil {
		return n
	}
	if next := n.below[field]; next != nil {
		return next
	}
	return n.rest
}
