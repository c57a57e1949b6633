// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"

	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// maxIOThreads limits the request of a spec; QEMU opens files for each thread.
const maxIOThreads = 1024

// threadPlan says how many I/O threads a guest has and who uses them: disks take turns on threads 1
// to shared, and each of the others has one dedicated disk. Threads of a pool are used by every
// disk.
type threadPlan struct {
	total, shared uint
	pool          bool
}

// ioThreadPass assigns disks to threads.
type ioThreadPass struct{ *Conversion }

// hasIOThreads reports whether the guest has I/O threads: with a policy, or if a disk requests a
// dedicated one.
func (c *Conversion) hasIOThreads() bool {
	return c.VMI.Spec.Domain.IOThreadsPolicy != nil ||
		slices.ContainsFunc(c.VMI.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return specIsTrue(d.DedicatedIOThread) })
}

// ioThreadPlan computes the number of threads from the disks of the spec and the limit of its
// policy; at least one is shared.
//
// Unlike in KubeVirt, hotplugged disks do not count: threads cannot be added while the guest runs,
// so that such a disk would change the desired domain after the fact. They share the existing
// threads.
func (c ioThreadPass) ioThreadPlan() (threadPlan, error) {
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
		return threadPlan{}, c.Invalid(specDomain+"ioThreadsPolicy", fmt.Sprintf("Unsupported value: %q", *p), "use shared, auto or supplementalPool")
	}
	var shared, dedicated int64
	for i := range c.VMI.Spec.Domain.Devices.Disks {
		switch d := &c.VMI.Spec.Domain.Devices.Disks[i]; {
		case c.hotpluggable(d.Name):
		case specIsTrue(d.DedicatedIOThread):
			dedicated++
		default:
			shared++
		}
	}
	if shared+dedicated > limit {
		shared = max(limit-dedicated, 1)
	}
	if shared+dedicated == 0 {
		shared = 1 // for disks that are hotplugged later
	}
	return threadPlan{total: uint(shared + dedicated), shared: uint(shared)}, nil
}

// autoThreads returns the limit of policy auto: twice the requested CPUs or, without a request, the
// limit; and one if there is an isolated emulator thread.
func (c ioThreadPass) autoThreads() int64 {
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

// supplementalPool returns the plan of policy supplementalPool.
func (c ioThreadPass) supplementalPool() (threadPlan, error) {
	const field = specDomain + "ioThreads.supplementalPoolThreadCount"
	t := c.VMI.Spec.Domain.IOThreads
	switch {
	case t == nil || t.SupplementalPoolThreadCount == nil || *t.SupplementalPoolThreadCount == 0:
		return threadPlan{}, c.Invalid(field, "Required value", "set it to at least 1")
	case *t.SupplementalPoolThreadCount > maxIOThreads:
		return threadPlan{}, c.Invalid(field, fmt.Sprintf("Invalid value: %d threads are too many", *t.SupplementalPoolThreadCount), fmt.Sprintf("use at most %d", maxIOThreads))
	}
	return threadPlan{total: uint(*t.SupplementalPoolThreadCount), pool: true}, nil
}

// hotpluggable reports whether the volume of a disk can be hotplugged.
func (c ioThreadPass) hotpluggable(disk string) bool {
	c.nameParts()
	v := c.volumes[disk]
	return v != nil && (v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable || v.DataVolume != nil && v.DataVolume.Hotpluggable)
}

// ioThreads assigns a thread to each virtio disk: dedicated ones in spec order, the shared ones in
// turns. Disks on other buses have none. Hotplugged disks come last and never have a dedicated one,
// so that they change no other disk.
func ioThreads(c *Conversion) error {
	plan, err := ioThreadPass{c}.ioThreadPlan()
	if err != nil || plan.total == 0 {
		return err
	}
	c.Domain.IOThreads = plan.total
	next, own := uint(1), plan.shared+1
	for _, d := range (ioThreadPass{c}).threadedDisks() {
		name := xmlspec.NameOf(d.Alias)
		switch {
		case plan.pool:
			d.Driver.IOThreads = plan.all()
		case ioThreadPass{c}.ownThread(name) && !ioThreadPass{c}.hotpluggable(name):
			d.Driver.IOThread = new(own)
			own++
		default:
			d.Driver.IOThread = new(next)
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

// after returns the next shared thread.
func (p threadPlan) after(id uint) uint {
	if p.shared == 0 { // hotplugged disks have to share dedicated threads
		return id%p.total + 1
	}
	return id%p.shared + 1
}

// threadedDisks lists the disks that support I/O threads, hotplugged ones last.
func (c ioThreadPass) threadedDisks() []*libvirtxml.DomainDisk {
	var lasting, passing []*libvirtxml.DomainDisk
	for i := range c.Domain.Devices.Disks {
		switch d := &c.Domain.Devices.Disks[i]; {
		case d.Target.Bus != xmlspec.BusVirtio:
		case c.hotpluggable(xmlspec.NameOf(d.Alias)):
			passing = append(passing, d)
		default:
			lasting = append(lasting, d)
		}
	}
	return append(lasting, passing...)
}

// ownThread reports whether the spec requests a dedicated I/O thread for a disk.
func (c ioThreadPass) ownThread(disk string) bool {
	c.nameParts()
	return c.ownThreads[disk]
}

// nameParts indexes volumes and networks by name, and records which disks have a dedicated thread.
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
		if d := &c.VMI.Spec.Domain.Devices.Disks[i]; specIsTrue(d.DedicatedIOThread) {
			c.ownThreads[d.Name] = true
		}
	}
}
