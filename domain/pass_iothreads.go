// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"

	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// maxIOThreads bounds what a spec may ask for; QEMU opens files for each.
const maxIOThreads = 1024

// threadPlan says how many I/O threads a guest has and who uses them: 1 to shared
// in turns, those above by one disk each. All of a pool's are used by every disk.
type threadPlan struct {
	total, shared uint
	pool          bool
}

// hasIOThreads tells whether the guest has I/O threads at all: with a policy, or
// if a disk asks for one of its own.
func (c *Conversion) hasIOThreads() bool {
	return c.VMI.Spec.Domain.IOThreadsPolicy != nil ||
		slices.ContainsFunc(c.VMI.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return isTrue(d.DedicatedIOThread) })
}

// ioThreadPlan counts the threads, by the disks of the spec and the limit of its
// policy; there is at least one for disks that have none of their own.
//
// Hotplugged disks are not counted, as they are in KubeVirt: threads cannot be
// added while the guest lives, so a disk that comes later would change what the
// domain should have been. Such disks share what there is.
func (c *Conversion) ioThreadPlan() (threadPlan, error) {
	if !c.hasIOThreads() {
		return threadPlan{}, nil
	}
	var limit int64
	switch p := c.VMI.Spec.Domain.IOThreadsPolicy; {
	case p == nil || *p == v1.IOThreadsPolicyShared:
		limit = 1
	case *p == v1.IOThreadsPolicyAuto:
		limit = c.autoThreads()
	case *p == v1.IOThreadsPolicySupplementalPool:
		return c.supplementalPool()
	default:
		return threadPlan{}, c.Invalid(specDomain+"ioThreadsPolicy", fmt.Sprintf("%q is no policy", *p), "use shared, auto or supplementalPool")
	}
	var shared, dedicated int64
	for i := range c.VMI.Spec.Domain.Devices.Disks {
		switch d := &c.VMI.Spec.Domain.Devices.Disks[i]; {
		case c.hotpluggable(d.Name):
		case isTrue(d.DedicatedIOThread):
			dedicated++
		default:
			shared++
		}
	}
	if shared+dedicated > limit {
		shared = max(limit-dedicated, 1)
	}
	if shared+dedicated == 0 {
		shared = 1 // for disks that come later
	}
	return threadPlan{total: uint(shared + dedicated), shared: uint(shared)}, nil
}

// autoThreads is the limit of policy auto: twice the CPUs the guest requests or, if
// it has none to itself, is limited to; and one if the emulator's host thread is
// there to take it.
func (c *Conversion) autoThreads() int64 {
	s := &c.VMI.Spec.Domain
	if s.CPU != nil && s.CPU.DedicatedCPUPlacement && s.CPU.IsolateEmulatorThread {
		return 1
	}
	cpus := int64(1)
	for _, l := range []k8sv1.ResourceList{s.Resources.Limits, s.Resources.Requests} {
		if q, ok := l[k8sv1.ResourceCPU]; ok {
			cpus = q.Value()
		}
	}
	return 2 * min(max(cpus, 0), maxIOThreads)
}

// supplementalPool is the plan of policy supplementalPool.
func (c *Conversion) supplementalPool() (threadPlan, error) {
	const field = specDomain + "ioThreads.supplementalPoolThreadCount"
	t := c.VMI.Spec.Domain.IOThreads
	switch {
	case t == nil || t.SupplementalPoolThreadCount == nil || *t.SupplementalPoolThreadCount == 0:
		return threadPlan{}, c.Invalid(field, "the policy needs a number of threads", "set it to 1 at least")
	case *t.SupplementalPoolThreadCount > maxIOThreads:
		return threadPlan{}, c.Invalid(field, fmt.Sprintf("%d threads are too many", *t.SupplementalPoolThreadCount), fmt.Sprintf("ask for %d at most", maxIOThreads))
	}
	return threadPlan{total: uint(*t.SupplementalPoolThreadCount), pool: true}, nil
}

// hotpluggable tells whether a disk's volume comes and goes while the guest lives.
func (c *Conversion) hotpluggable(disk string) bool {
	c.nameParts()
	v := c.volumes[disk]
	return v != nil && (v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable || v.DataVolume != nil && v.DataVolume.Hotpluggable)
}

// ioThreads tells each virtio disk its thread: those with one of their own in the
// order of the spec, all others in turns. Disks on other buses have none. Hotplugged
// disks come last and never have one of their own, so that they change no other's.
func ioThreads(c *Conversion) error {
	plan, err := c.ioThreadPlan()
	if err != nil || plan.total == 0 {
		return err
	}
	c.Domain.IOThreads = plan.total
	next, own := uint(1), plan.shared+1
	for _, d := range c.threadedDisks() {
		name := nameOf(d.Alias)
		switch {
		case plan.pool:
			d.Driver.IOThreads = plan.all()
		case c.ownThread(name) && !c.hotpluggable(name):
			d.Driver.IOThread = ptr(own)
			own++
		default:
			d.Driver.IOThread = ptr(next)
			next = plan.after(next)
		}
	}
	return nil
}

// all lists all threads, for a disk that uses every one.
func (p threadPlan) all() *libvirtxml.DomainDiskIOThreads {
	out := &libvirtxml.DomainDiskIOThreads{}
	for id := range p.total {
		out.IOThread = append(out.IOThread, libvirtxml.DomainDiskIOThread{ID: id + 1})
	}
	return out
}

// after is the thread whose turn it is after that one.
func (p threadPlan) after(id uint) uint {
	if p.shared == 0 { // whoever comes later has to share with a disk that wanted to be alone
		return id%p.total + 1
	}
	return id%p.shared + 1
}

// threadedDisks lists the disks that can use I/O threads, hotplugged ones last.
func (c *Conversion) threadedDisks() []*libvirtxml.DomainDisk {
	var lasting, passing []*libvirtxml.DomainDisk
	for i := range c.Domain.Devices.Disks {
		switch d := &c.Domain.Devices.Disks[i]; {
		case d.Target.Bus != busVirtio:
		case c.hotpluggable(nameOf(d.Alias)):
			passing = append(passing, d)
		default:
			lasting = append(lasting, d)
		}
	}
	return append(lasting, passing...)
}

// ownThread tells whether the spec gives a disk an I/O thread of its own.
func (c *Conversion) ownThread(disk string) bool {
	c.nameParts()
	return c.ownThreads[disk]
}

// nameParts notes volumes and networks by name, and which disks have a thread of their own.
func (c *Conversion) nameParts() {
	if c.volumes != nil {
		return
	}
	c.volumes, c.networks, c.ownThreads = make(map[string]*v1.Volume, len(c.VMI.Spec.Volumes)), map[string]bool{}, map[string]bool{}
	for i := range c.VMI.Spec.Networks {
		c.networks[c.VMI.Spec.Networks[i].Name] = true
	}
	for i := range c.VMI.Spec.Volumes {
		if v := &c.VMI.Spec.Volumes[i]; c.volumes[v.Name] == nil {
			c.volumes[v.Name] = v
		}
	}
	for i := range c.VMI.Spec.Domain.Devices.Disks {
		if d := &c.VMI.Spec.Domain.Devices.Disks[i]; isTrue(d.DedicatedIOThread) {
			c.ownThreads[d.Name] = true
		}
	}
}
