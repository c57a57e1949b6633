// SPDX-License-Identifier: Apache-2.0

// Package nodecheck finds out what a node lacks for VMIs in Pods: [Probe.Facts] looks at the node, [Judge] is pure.
package nodecheck

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/nodectrl"
)

// The codes of problems.
const (
	noKVM        = "NoKVM"
	noTun        = "NoTun"
	noVhostNet   = "NoVhostNet"
	podsNoMount  = "PodsNotMounted"
	podsNoShared = "PodsNotShared"
	noCgroup     = "NoCgroup"
)

// Facts are what a node has.
type Facts struct {
	// KVM, Tun and VhostNet report whether the devices exist.
	KVM, Tun, VhostNet bool
	// CPU reports whether the processor can virtualize: without that a device KVM runs no guests.
	CPU bool
	// Emulation reports whether the KubeVirt object allows VMIs without KVM.
	Emulation bool
	// Pods is the kubelet's folder of Pods; Mounted reports whether it is within a mount, Shared whether mounts that are made
	// there reach the node.
	Pods            string
	Mounted, Shared bool
	// Cgroups is where the node's cgroups should be, empty if that does not matter; Cgroup reports whether they are there.
	Cgroups string
	Cgroup  bool
}

// Judge returns what is missing.
func Judge(f Facts) []nodectrl.Problem {
	var all []nodectrl.Problem
	add := func(missing bool, code, what, remedy string) {
		if missing {
			all = append(all, nodectrl.Problem{Code: code, What: what, Remedy: remedy})
		}
	}
	const virtualize = "enable virtualization in its firmware, or nested virtualization in its hypervisor, and load the module kvm_intel or kvm_amd; " +
		"or allow slow emulation: spec.configuration.developerConfiguration.useEmulation of the KubeVirt object"
	add(!f.KVM && !f.Emulation, noKVM, "the node has no /dev/kvm", virtualize)
	add(f.KVM && !f.CPU && !f.Emulation, noKVM, "the node's /dev/kvm runs no VMIs: its CPU has neither vmx nor svm", virtualize)
	add(!f.Tun, noTun, "the node has no /dev/net/tun, with which VMIs are connected to networks", "load the module tun (modprobe tun), also at boot (/etc/modules-load.d)")
	add(!f.VhostNet && !f.Emulation, noVhostNet, "the node has no /dev/vhost-net, which launcher Pods ask for", "load the module vhost_net (modprobe vhost_net), also at boot (/etc/modules-load.d)")
	add(!f.Mounted, podsNoMount, f.Pods+" is not a folder of the node", "if the kubelet has another --root-dir, change the volume \"pods\" of the DaemonSet and its --launchers")
	add(f.Mounted && !f.Shared, podsNoShared, f.Pods+" is not a shared mount: volumes that are mounted there do not reach VMIs",
		"make it shared on the node (mount --make-rshared /), and keep mountPropagation: Bidirectional of the DaemonSet")
	add(f.Cgroups != "" && !f.Cgroup, noCgroup, f.Cgroups+" is no hierarchy of cgroups", "mount cgroup v2, or the devices hierarchy of cgroup v1, under /sys/fs/cgroup of the node, and keep hostPID of the DaemonSet")
	return all
}

// Probe looks at a node.
type Probe struct {
	// Pods is the kubelet's folder of Pods, Cgroups the mount point of the node's cgroups, empty if that does not matter.
	Pods, Cgroups string
	// Emulation reports whether VMIs without KVM are allowed.
	Emulation func(context.Context) (bool, error)
	// Root is the root of the file system of devices and mounts; defaults to /.
	Root string
}

// Facts returns what the node has. If the setting of emulation cannot be read, nothing is said about KVM.
func (p *Probe) Facts(ctx context.Context) (Facts, error) {
	f := Facts{
		KVM: p.device("/dev/kvm"), Tun: p.device("/dev/net/tun"), VhostNet: p.device("/dev/vhost-net"), Pods: p.Pods,
		Cgroups: p.Cgroups, Cgroup: p.Cgroups != "" && cgroups(p.Cgroups),
	}
	var errs [3]error
	f.CPU, errs[2] = p.virtualizes()
	if f.Emulation, errs[0] = p.Emulation(ctx); errs[0] != nil {
		f.Emulation = true
	}
	f.Mounted, f.Shared, errs[1] = p.mount()
	return f, errors.Join(errs[:]...)
}

func (p *Probe) device(path string) bool {
	f, err := os.Stat(filepath.Join(p.Root, path))
	return err == nil && f.Mode().Type() == fs.ModeDevice|fs.ModeCharDevice
}

// virtualizes reports whether the processor can virtualize, as far as the kernel says; only that of x86_64 does.
func (p *Probe) virtualizes() (bool, error) {
	table, err := os.ReadFile(filepath.Join(p.Root, "/proc/cpuinfo"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	for line := range strings.Lines(string(table)) {
		if name, flags, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			all := strings.Fields(flags)
			return slices.Contains(all, "vmx") || slices.Contains(all, "svm"), nil
		}
	}
	return true, err
}

// mount reports whether the folder of Pods exists, and whether its mount is shared.
func (p *Probe) mount() (found, shared bool, err error) {
	if f, err := os.Stat(filepath.Join(p.Root, p.Pods)); err != nil || !f.IsDir() {
		return false, false, nil
	}
	table, err := os.Open(filepath.Join(p.Root, "/proc/self/mountinfo"))
	if err != nil {
		return true, true, err
	}
	defer table.Close()
	shared, err = propagates(table, p.Pods)
	return true, shared, err
}

// propagates reports whether the mount of a folder is shared, by a table of mounts (proc_pid_mountinfo(5)): the last one of the
// longest path counts.
func propagates(table io.Reader, folder string) (bool, error) {
	longest, shared := -1, false
	for lines := bufio.NewScanner(table); ; {
		if !lines.Scan() {
			return shared, lines.Err()
		}
		const path, optional = 4, 6
		fields := strings.Fields(lines.Text())
		if len(fields) <= optional {
			continue
		}
		at := unescape.Replace(fields[path])
		if len(at) < longest || at != folder && !strings.HasPrefix(folder, strings.TrimSuffix(at, "/")+"/") {
			continue
		}
		end := slices.Index(fields[optional:], "-")
		longest, shared = len(at), slices.ContainsFunc(fields[optional:optional+max(end, 0)], func(f string) bool { return strings.HasPrefix(f, "shared:") })
	}
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// cgroups reports whether there is a hierarchy of cgroups, of either version.
func cgroups(mount string) bool {
	var s unix.Statfs_t
	for path, kinds := range map[string][]int64{mount: {unix.CGROUP2_SUPER_MAGIC}, filepath.Join(mount, "devices"): {unix.CGROUP_SUPER_MAGIC}} {
		if unix.Statfs(path, &s) == nil && slices.Contains(kinds, int64(s.Type)) { //nolint:unconvert // its type differs between architectures
			return true
		}
	}
	return false
}
