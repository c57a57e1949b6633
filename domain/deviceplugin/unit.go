// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Unit is one of the devices of a resource that are not alike, such as a PCI device. A container
// that gets it has it alone.
type Unit struct {
	// ID names the device to the kubelet: the same after a restart, so that the kubelet knows which
	// ones running containers have.
	ID string
	// Nodes are the device nodes that a container gets, at the same paths as on the node. The
	// device is healthy while all of them exist.
	Nodes []string
	// Variable is the name of the environment variable that says to the container which devices it
	// has, by their Values, separated by commas.
	Variable string
	// Values are the addresses of the device, or of the devices that are given together.
	Values []string
	// Cell is the NUMA node of the device; nil if unknown.
	Cell *int64

	// gone says that the device is not in the latest list.
	gone bool
}

// maxID is the maximum length of an ID.
const maxID = 256

// check returns the first invalid field, and why; empty if there is none.
func (u Unit) check() (field, reason string) {
	switch {
	case u.ID == "" || len(u.ID) > maxID:
		return "ID", fmt.Sprintf("Invalid value: %.80q must have 1 to %d characters", u.ID, maxID)
	case len(u.Nodes) == 0:
		return "Nodes", "Required value: set the device node, such as /dev/vfio/7"
	case u.Cell != nil && *u.Cell < 0:
		return "Cell", fmt.Sprintf("Invalid value: %d is negative", *u.Cell)
	case strings.ContainsAny(u.Variable, "= \x00"):
		return "Variable", fmt.Sprintf("Invalid value: %q cannot name an environment variable", u.Variable)
	case slices.ContainsFunc(u.Values, func(v string) bool { return v == "" || strings.ContainsAny(v, ",\x00") }):
		return "Values", fmt.Sprintf("Invalid value: %q must not be empty or contain a comma", u.Values)
	}
	return "Nodes", checkNodes(u.Nodes)
}

// checkNodes returns why paths cannot be those of device nodes; empty if they can.
func checkNodes(paths []string) string {
	for _, n := range paths {
		if !filepath.IsAbs(n) || filepath.Clean(n) != n {
			return fmt.Sprintf("Invalid value: %q is not an absolute, clean path", n)
		}
	}
	return ""
}

// checkUnits returns the first error of a list.
func checkUnits(device string, all []Unit) error {
	if len(all) > maxSlots {
		return invalid(device, "Units", fmt.Sprintf("Too many: %d, at most %d", len(all), maxSlots))
	}
	seen := map[string]bool{}
	for i, u := range all {
		if field, reason := u.check(); reason != "" {
			return invalid(device, fmt.Sprintf("Units[%d].%s", i, field), reason)
		}
		if seen[u.ID] {
			return invalid(device, fmt.Sprintf("Units[%d].ID", i), fmt.Sprintf("Duplicate value: %q", u.ID))
		}
		seen[u.ID] = true
	}
	return nil
}

// invalid returns the error of a field.
func invalid(device, field, reason string) error {
	return fmt.Errorf("deviceplugin: device %q: %s: %s", device, field, reason)
}

// merge returns a new list together with those devices of the previous one that it lacks, marked as
// gone: containers may have them still, and they may return. Beyond maxKept devices, those that have
// been away the longest are forgotten.
func merge(previous, next []Unit) []Unit {
	listed := map[string]bool{}
	for _, u := range next {
		listed[u.ID] = true
	}
	out := slices.Clone(next)
	for _, u := range previous {
		if !listed[u.ID] && len(out) < maxKept {
			u.gone = true
			out = append(out, u)
		}
	}
	return out
}

// maxKept bounds a list by leaving out devices that are gone: mediated devices come and go.
const maxKept = 1000

// paths returns the device nodes of a list, without repetition.
func paths(all []Unit) []string {
	var out []string
	for _, u := range all {
		out = append(out, u.Nodes...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// state returns what the kubelet gets to know about a device. Missing are the device nodes that do not
// exist.
func (u Unit) state(missing map[string]bool) *kubelet.Device {
	d := &kubelet.Device{ID: u.ID, Health: kubelet.Healthy}
	if u.gone || slices.ContainsFunc(u.Nodes, func(n string) bool { return missing[n] }) {
		d.Health = kubelet.Unhealthy
	}
	if u.Cell != nil {
		d.Topology = &kubelet.TopologyInfo{Nodes: []*kubelet.NUMANode{{ID: *u.Cell}}}
	}
	return d
}

// sameState reports whether two states are the same to the kubelet.
func sameState(a, b *kubelet.Device) bool {
	return a.ID == b.ID && a.Health == b.Health && cell(a) == cell(b)
}

// cell returns the NUMA node of a device, -1 if it has none.
func cell(d *kubelet.Device) int64 {
	for _, n := range d.GetTopology().GetNodes() {
		return n.GetID()
	}
	return -1
}
