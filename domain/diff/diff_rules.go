// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Prefixes of the fields of differences.
const (
	fieldDomain  = "spec.domain."
	fieldDevices = fieldDomain + "devices."
)

// rule is the meaning of a difference in one part of a domain.
type rule struct {
	// class is when it can be resolved. It is empty for parts that are not compared, because
	// another rule covers them or because they depend on the node and not on the spec.
	class Class
	// field is the path in the VirtualMachineInstance: absolute, or relative to the device if it
	// begins with a dot. If empty, it is the libvirt element.
	field string
	// reason is why the difference cannot be resolved earlier.
	reason string
	// live says that the running domain has the value as requested, so that it is compared; else
	// last is. exact says that a value that is unset in the desired domain must be unset in the
	// running one.
	live, exact bool
	// fold says that letter case is ignored.
	fold bool
}

const (
	otherMachine = "the change would make it another machine"
	fixedAtStart = "is fixed when the domain starts"
	seenByGuest  = "the guest depends on this property of the device"
	volumeInUse  = "the volume of a disk in use can be changed by a migration only"
	readAtBoot   = "is read when the domain starts"
	ofTheProcess = "belongs to the QEMU process"
)

// nothing is the rule for parts that are not compared.
var nothing = rule{}

// bootsRule is for values that the hypervisor rewrites or completes, or that no reader sees: only a change of
// the spec counts. shown is for values that a hypervisor keeps as they were requested: the running
// domain counts, so a change made by hand is found as well. strict differs from shown in that an unset
// value means something, such as "not read-only". moves is for properties of the process which the
// guest cannot see.
func bootsRule(field string) rule { return rule{class: NextBoot, field: field, reason: fixedAtStart} }
func shownRule(field string) rule {
	return rule{class: NextBoot, field: field, reason: seenByGuest, live: true}
}
func strictRule(field string) rule { r := shownRule(field); r.exact = true; return r }
func movesRule(field string) rule {
	return rule{class: NeedsMigration, field: field, reason: ofTheProcess, live: true}
}

// ruleTable maps paths in a libvirtxml.Domain to rules. A rule applies to everything below its path
// that has no rule of its own. A part without any rule, because libvirtxml added it, is compared
// with last and counts from the next boot on.
//
// The table errs on the side of NextBoot: a part that is wrongly held for fixed costs a reboot, one
// that is wrongly held for changeable an operation that fails in every pass. A path that libvirtxml
// renames is an error of every Compare, and of the tests of this package, rather than a part that is
// silently not compared.
var ruleTable = map[string]rule{
	"":         {class: NextBoot, reason: fixedAtStart},
	"ID":       nothing,
	"Name":     nothing,
	"Metadata": nothing,
	"Type":     {class: NeedsRecreation, field: "domain.type", reason: "a domain cannot change between KVM and software emulation", live: true},
	"UUID":     {class: NeedsRecreation, field: fieldDomain + "firmware.uuid", reason: otherMachine, live: true, fold: true},
	// Sizes and numbers of CPUs: see memory and cpus.
	"Memory": nothing, "CurrentMemory": nothing, "VCPU": nothing, "VCPUs": nothing,
	"MaximumMemory":   bootsRule(fieldDomain + "memory.maxGuest"),
	"MemoryBacking":   bootsRule(fieldDomain + "memory.hugepages"),
	"IOThreads":       bootsRule(fieldDomain + "ioThreads"),
	"IOThreadIDs":     bootsRule(fieldDomain + "ioThreads"),
	"DefaultIOThread": bootsRule(fieldDomain + "ioThreads"),
	"CPUTune":         bootsRule(fieldDomain + "cpu.dedicatedCpuPlacement"),
	"NUMATune":        bootsRule(fieldDomain + "cpu.numa"),
	"SysInfo":         bootsRule(fieldDomain + "firmware"),
	"OS":              bootsRule(fieldDomain + "firmware"),
	"OS.Type":         nothing, // see machine
	"OS.Loader":       bootsRule(fieldDomain + "firmware.bootloader"),
	"OS.NVRam":        bootsRule(fieldDomain + "firmware.bootloader"),
	"OS.Kernel":       {class: NextBoot, field: fieldDomain + "firmware.kernelBoot.container.kernelPath", reason: readAtBoot, live: true, exact: true},
	"OS.Initrd":       {class: NextBoot, field: fieldDomain + "firmware.kernelBoot.container.initrdPath", reason: readAtBoot, live: true, exact: true},
	"OS.Cmdline":      {class: NextBoot, field: fieldDomain + "firmware.kernelBoot.kernelArgs", reason: readAtBoot, live: true, exact: true},
	"OS.BootMenu":     bootsRule("spec.startStrategy"),
	"Features":        bootsRule(fieldDomain + "features"),
	"Clock":           bootsRule(fieldDomain + "clock"),
	"OnReboot":        bootsRule(fieldDomain + "rebootPolicy"),
	"LaunchSecurity":  bootsRule(fieldDomain + "launchSecurity"),

	"CPU":                       bootsRule(fieldDomain + "cpu"),
	"CPU.Mode":                  bootsRule(fieldDomain + "cpu.model"),
	"CPU.Match":                 bootsRule(fieldDomain + "cpu.model"),
	"CPU.Model":                 bootsRule(fieldDomain + "cpu.model"),
	"CPU.Features":              bootsRule(fieldDomain + "cpu.features"),
	"CPU.Topology.Sockets":      nothing, // see cpus
	"CPU.Topology.Cores":        {class: NextBoot, field: fieldDomain + "cpu.cores", reason: "the topology " + fixedAtStart, live: true},
	"CPU.Topology.Threads":      {class: NextBoot, field: fieldDomain + "cpu.threads", reason: "the topology " + fixedAtStart, live: true},
	"CPU.Numa":                  bootsRule(fieldDomain + "cpu.numa"),
	"CPU.Numa.Cell.CPUs":        nothing, // follows from the number of CPUs
	"CPU.Numa.Cell.Memory":      nothing, // follows from the size of memory
	"CPU.Numa.Cell.Unit":        nothing,
	"Devices.Emulator":          nothing, // path on the node
	"Devices.Controllers":       bootsRule(""),
	"Devices.Controllers.USB":   nothing, // never set, but present after parsing
	"Devices.Controllers.Alias": nothing,
	// PCI buses follow from the devices, and from those at start.
	"Devices.Controllers.PCI":          nothing,
	"Devices.Controllers.PCI.Hole64":   bootsRule("metadata.annotations[kubevirt.io/disablePCIHole64]"),
	"Devices.Controllers.VirtIOSerial": nothing,
	"Devices.Serials":                  bootsRule(fieldDevices + "autoattachSerialConsole"),
	"Devices.Consoles":                 bootsRule(fieldDevices + "autoattachSerialConsole"),
	"Devices.Serials.Log":              bootsRule(fieldDevices + "logSerialConsole"),
	"Devices.Graphics":                 bootsRule(fieldDevices + "autoattachGraphicsDevice"),
	"Devices.Videos":                   bootsRule(fieldDevices + "video"),
	"Devices.Inputs":                   bootsRule(fieldDevices + "inputs"),
	"Devices.RNGs":                     bootsRule(fieldDevices + "rng"),
	"Devices.MemBalloon":               bootsRule(fieldDevices + "autoattachMemBalloon"),
	"Devices.Watchdogs":                bootsRule(fieldDevices + "watchdog"),
	"Devices.Panics":                   bootsRule(fieldDevices + "panicDevices"),
	"Devices.Sounds":                   bootsRule(fieldDevices + "sound"),
	"Devices.TPMs":                     bootsRule(fieldDevices + "tpm"),
	"Devices.VSock":                    bootsRule(fieldDevices + "autoattachVSOCK"),
	"Devices.VSock.CID":                nothing, // allocated by the node
	"Devices.RedirDevs":                bootsRule(fieldDevices + "clientPassthrough"),
	"Devices.Filesystems":              bootsRule(fieldDevices + "filesystems"),
	"Devices.Memorydevs":               nothing, // see memory

	"Devices.Disks":                    bootsRule("."),
	"Devices.Disks.Device":             strictRule("."),
	"Devices.Disks.Driver.Type":        movesRule(".format"),
	"Devices.Disks.Driver.Cache":       movesRule(".cache"),
	"Devices.Disks.Driver.IO":          movesRule(".io"),
	"Devices.Disks.Driver.ErrorPolicy": movesRule(".errorPolicy"),
	"Devices.Disks.Driver.Discard":     movesRule(".discard"),
	"Devices.Disks.Driver.Queues":      bootsRule(fieldDevices + "blockMultiQueue"),
	// The thread of a disk depends on the other disks.
	"Devices.Disks.Driver.IOThread":  nothing,
	"Devices.Disks.Driver.IOThreads": nothing,
	"Devices.Disks.Source":           bootsRule(".volume"),
	"Devices.Disks.Source.File":      nothing, // see source
	"Devices.Disks.Source.Block":     nothing,
	"Devices.Disks.BackingStore":     {class: NeedsMigration, field: ".volume", reason: volumeInUse},
	"Devices.Disks.BlockIO":          bootsRule(".blockSize"),
	"Devices.Disks.Target.Bus":       shownRule(".bus"),
	"Devices.Disks.Target.Dev":       nothing, // not visible to the guest
	"Devices.Disks.Target.Tray":      bootsRule(".tray"),
	"Devices.Disks.Serial":           strictRule(".serial"),
	"Devices.Disks.ReadOnly":         strictRule(".readonly"),
	"Devices.Disks.Shareable":        strictRule(".shareable"),
	"Devices.Disks.Boot":             {class: NextBoot, field: ".bootOrder", reason: readAtBoot, live: true, exact: true},
	"Devices.Disks.Alias":            nothing,

	"Devices.Interfaces":                bootsRule("."),
	"Devices.Interfaces.MAC":            {class: NextBoot, field: ".macAddress", reason: seenByGuest, live: true, fold: true},
	"Devices.Interfaces.Model":          shownRule(".model"),
	"Devices.Interfaces.Boot":           {class: NextBoot, field: ".bootOrder", reason: readAtBoot, live: true, exact: true},
	"Devices.Interfaces.Source":         bootsRule(".network"),
	"Devices.Interfaces.Source.Bridge":  nothing, // see networkCard
	"Devices.Interfaces.Link":           nothing,
	"Devices.Interfaces.Target":         nothing, // set by the node
	"Devices.Interfaces.MTU":            nothing,
	"Devices.Interfaces.Driver.Queues":  bootsRule(fieldDevices + "networkInterfaceMultiqueue"),
	"Devices.Interfaces.PortForward":    bootsRule(".ports"),
	"Devices.Interfaces.Backend":        bootsRule(".binding"),
	"Devices.Interfaces.ACPI":           bootsRule(".acpiIndex"),
	"Devices.Interfaces.Alias":          nothing,
	"Devices.Hostdevs":                  bootsRule("."),
	"Devices.Hostdevs.SubsysPCI.Source": nothing, // allocated by the node
	// The same goes for mediated and USB devices.
	"Devices.Hostdevs.SubsysMDev.Source": nothing,
	"Devices.Hostdevs.SubsysUSB.Source":  nothing,
	"Devices.Hostdevs.Boot":              {class: NextBoot, field: ".bootOrder", reason: readAtBoot, live: true, exact: true},
	"Devices.Hostdevs.Alias":             nothing,
}

// node is a part of a domain with its rule.
type node struct {
	rule rule
	// below holds the nodes of fields, nil for a field with the same rule.
	below []*node
	// rest is the node of the fields that are nil in below.
	rest *node
	// live and exact report whether any rule here or below is; own whether the part is compared
	// device by device.
	live, exact, own bool
}

// ruleTree is ruleTable as a tree in the shape of a domain.
var ruleTree, errRules = compileRules(ruleTable)

// ownLists are the lists that are compared device by device.
var ownLists = map[string]bool{
	"Devices.Disks": true, "Devices.Interfaces": true, "Devices.Hostdevs": true, "Devices.Memorydevs": true,
}

// compileRules builds the tree, and rejects paths that a domain does not have.
func compileRules(table map[string]rule) (*node, error) {
	root := &node{rule: table[""]}
	paths := slices.SortedFunc(maps.Keys(table), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), cmp.Compare(a, b))
	})
	for _, path := range paths { // shorter ones first: their rule applies to everything below
		if path == "" {
			continue
		}
		at, err := root.find(path)
		if err != nil {
			return nil, err
		}
		// find gave new nodes the rule of their parent. As shorter paths come first, that of a parent is
		// final by now, and this overrides it for the node alone and what will be created below.
		at.rule, at.own = table[path], ownLists[path]
	}
	root.finish()
	return root, nil
}

// find returns the node for a path, and creates it with its parents if missing.
func (n *node) find(path string) (*node, error) {
	t := reflect.TypeFor[libvirtxml.Domain]()
	for _, name := range strings.Split(path, ".") {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		f, ok := t.FieldByName(name)
		if !ok || len(f.Index) != 1 {
			return nil, fmt.Errorf("rule for %s: type %s has no field %s", path, t.Name(), name)
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

// finish computes the flags of the node from those below.
func (n *node) finish() {
	n.live, n.exact = n.rule.live, n.rule.exact
	// One node stands for all fields without rules of their own. It has no nodes below, so child
	// returns it for everything beneath, without a node for each of libvirt's thousands of fields.
	n.rest = &node{rule: n.rule, live: n.rule.live, exact: n.rule.exact}
	for _, next := range n.below {
		if next != nil {
			next.finish()
			n.live, n.exact = n.live || next.live, n.exact || next.exact
		}
	}
}

// child returns the node of a field.
func (n *node) child(field int) *node {
	if n.below == nil {
		return n
	}
	if next := n.below[field]; next != nil {
		return next
	}
	return n.rest
}
