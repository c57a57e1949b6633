// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// notOfTheDomain are the fields of a VMI's spec that no conversion reads, with all
// below them, and why; where it only matters that a field is there, those below it,
// written as .*.
var notOfTheDomain = map[string]string{
	// The Pod and where it runs.
	"spec.affinity":                                 scheduling,
	"spec.nodeSelector":                             scheduling,
	"spec.tolerations":                              scheduling,
	"spec.topologySpreadConstraints":                scheduling,
	"spec.schedulerName":                            scheduling,
	"spec.priorityClassName":                        scheduling,
	"spec.dnsConfig":                                "of the Pod, and of the addresses that the guest is offered",
	"spec.dnsPolicy":                                "of the Pod",
	"spec.serviceAccountName":                       "of the Pod",
	"spec.resourceClaims":                           "of the Pod; the devices come with the facts",
	"spec.domain.resources.overcommitGuestOverhead": "of the Pod's requests",
	"spec.domain.memory.reservedOverhead":           "of the Pod's requests and its limit of locked memory",
	"spec.evictionStrategy":                         "the controllers' when a node is drained",
	"spec.utilityVolumes":                           "of the Pod: the guest never sees them",
	"spec.domain.devices.autoattachPodInterface":    "the API server's: it adds the interface",

	// Decisions of the node agent.
	"spec.terminationGracePeriodSeconds":                                             "of the decision when to stop a guest, see Decide",
	"spec.livenessProbe":                                                             "the guest is asked, not changed",
	"spec.readinessProbe":                                                            "the guest is asked, not changed",
	"spec.domain.launchSecurity.sev.attestation":                                     "the guest is not started before its owner has attested it",
	"spec.domain.cpu.realtime.mask":                                                  "the scheduling class of threads that run already",
	"spec.accessCredentials[].sshPublicKey.source":                                   credentials,
	"spec.accessCredentials[].userPassword.source":                                   credentials,
	"spec.accessCredentials[].sshPublicKey.propagationMethod.qemuGuestAgent.users[]": credentials,

	// What the network offers; the card is the same.
	"spec.networks[].pod":                           network,
	"spec.networks[].multus":                        network,
	"spec.networks[].resourceClaim":                 network,
	"spec.domain.devices.interfaces[].binding.name": network,
	"spec.domain.devices.interfaces[].dhcpOptions":  network,
	"spec.domain.devices.interfaces[].ports[].name": network,
	"spec.domain.devices.interfaces[].portRanges[]": network,
	"spec.hostname":                                 seed,
	"spec.subdomain":                                seed,
	"spec.domain.devices.interfaces[].tag":          seed,
	"spec.domain.devices.disks[].tag":               seed,
	"spec.domain.devices.gpus[].tag":                seed,
	"spec.domain.devices.hostDevices[].tag":         seed,

	// What is in a volume; where it lies on the node comes with the facts.
	"spec.domain.firmware.kernelBoot.container.image":           content,
	"spec.domain.firmware.kernelBoot.container.imagePullPolicy": content,
	"spec.domain.firmware.kernelBoot.container.imagePullSecret": content,
	"spec.volumes[].cloudInitConfigDrive.*":                     content,
	"spec.volumes[].cloudInitNoCloud.*":                         content,
	"spec.volumes[].configMap":                                  content,
	"spec.volumes[].containerDisk.*":                            content,
	"spec.volumes[].containerPath.*":                            content,
	"spec.volumes[].dataVolume.name":                            content,
	"spec.volumes[].downwardAPI":                                content,
	"spec.volumes[].emptyDisk.*":                                content,
	"spec.volumes[].ephemeral.*":                                content,
	"spec.volumes[].hostDisk":                                   content,
	"spec.volumes[].memoryDump.*":                               content,
	"spec.volumes[].persistentVolumeClaim.claimName":            content,
	"spec.volumes[].persistentVolumeClaim.readOnly":             content,
	"spec.volumes[].secret.*":                                   content,
	"spec.volumes[].serviceAccount":                             content,
	"spec.volumes[].sysprep":                                    content,
}

// Whose business fields are.
const (
	scheduling  = "of the Pod: where it may run"
	credentials = "the node's, which propagates them if its facts say so"
	network     = "the node's, which sets the network up"
	seed        = "of the data that cloud-init and DHCP hand to the guest"
	content     = "the node's, which provides the file"
)

// TestConversionReadsEveryField fails for a field of the spec that nobody looks at.
// A field is read if another value of it, or none, gives some guest of the corpus
// another domain or an error, on the same node. One that is none of the domain's
// business is listed with the reason; an entry that is no field any more, or is
// read, fails as well.
func TestConversionReadsEveryField(t *testing.T) {
	t.Parallel()
	known, read, tried := map[string]bool{}, map[string]bool{}, map[string]int{}
	declareFields(reflect.TypeFor[v1.VirtualMachineInstanceSpec](), "spec", known, nil)
	guests := corpus(t)
	guests["hotplug-later"] = hotplugged(guests["hotplug"].DeepCopy())
	for _, name := range []string{"hugepages", "memory-limit-only"} { // as they are before their defaults
		guests[name+"-bare"] = guests[name].DeepCopy()
		guests[name+"-bare"].Spec.Domain.Memory.Guest = nil
	}
	for _, name := range slices.Sorted(maps.Keys(guests)) {
		vmi := guests[name].DeepCopy()
		m := mutation{vmi: vmi, facts: domain.AssumeFacts(vmi), read: read, tried: tried}
		if m.before = m.convert(); m.before == nil {
			continue // it has no domain, see refusedGuests
		}
		m.walk(reflect.ValueOf(&vmi.Spec).Elem(), "spec")
		if !reflect.DeepEqual(m.convert(), m.before) {
			t.Fatalf("%s is not what it was: the test does not undo its changes", name)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(known)) {
		entry, reason := excuse(path)
		switch {
		case read[path] && reason != "":
			t.Errorf("%s is read, but notOfTheDomain has %s: %s", path, entry, reason)
		case !read[path] && reason == "":
			t.Errorf("no conversion reads %s: convert or refuse it, or say in notOfTheDomain whose business it is", path)
		}
	}
	for path := range notOfTheDomain {
		if !known[strings.TrimSuffix(path, ".*")] {
			t.Errorf("notOfTheDomain names %s, which is no field", path)
		}
	}
}

// hotplugged is a guest that was started with its first disk only: the others wait
// until they are attached.
func hotplugged(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: vmi.Spec.Volumes[0].Name}}
	return vmi
}

// excuse finds the entry for a path or for what it is part of.
func excuse(path string) (entry, reason string) {
	for entry, reason := range notOfTheDomain {
		field, within := strings.CutSuffix(entry, ".*")
		rest, ok := strings.CutPrefix(path, field)
		if ok && (rest == "" && !within || rest != "" && strings.ContainsAny(rest[:1], ".[{")) {
			return entry, reason
		}
	}
	return "", ""
}

// jsonFields calls f for every field of a struct, by its name in JSON, with those of
// inlined structs. A nil inlined pointer has no fields.
func jsonFields(t reflect.Type, f func(name string, index []int)) {
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			f(name, field.Index)
		}
	}
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// isLeaf tells whether a type is written as one value.
func isLeaf(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}

// declareFields notes the paths of all fields of a type; above are the types that
// the path leads through, which are not gone into again.
func declareFields(t reflect.Type, path string, known map[string]bool, above []reflect.Type) {
	known[path] = true
	switch t.Kind() {
	case reflect.Pointer:
		declareFields(t.Elem(), path, known, above)
	case reflect.Slice:
		declareFields(t.Elem(), path+"[]", known, above)
	case reflect.Map:
		declareFields(t.Elem(), path+"{}", known, above)
	case reflect.Struct:
		if isLeaf(t) || slices.Contains(above, t) {
			return
		}
		jsonFields(t, func(name string, index []int) {
			declareFields(t.FieldByIndex(index).Type, path+"."+name, known, append(slices.Clone(above), t))
		})
	}
}

// mutation changes one field of a guest at a time and looks what becomes of it.
type mutation struct {
	vmi    *v1.VirtualMachineInstance
	facts  domain.Facts
	before *libvirtxml.Domain
	read   map[string]bool
	// tried counts the attempts at fields that are said not to be read.
	tried map[string]int
}

// enough attempts at a field that is said not to be read.
const enough = 20

// convert returns the domain, nil if there is none.
func (m *mutation) convert() *libvirtxml.Domain {
	d, err := domain.Convert(m.vmi, m.facts)
	if err != nil {
		return nil
	}
	return d
}

// walk tries other values for everything in v.
func (m *mutation) walk(v reflect.Value, path string) {
	m.try(v, path)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			m.walk(v.Elem(), path)
		}
	case reflect.Slice:
		for i := range v.Len() {
			m.walk(v.Index(i), path+"[]")
		}
	case reflect.Map:
		m.entries(v, path+"{}")
	case reflect.Struct:
		if isLeaf(v.Type()) {
			return
		}
		jsonFields(v.Type(), func(name string, index []int) {
			if field, err := v.FieldByIndexErr(index); err == nil {
				m.walk(field, path+"."+name)
			}
		})
	}
}

// entries tries maps without each of their entries and with other values.
func (m *mutation) entries(v reflect.Value, path string) {
	for _, key := range v.MapKeys() {
		old := v.MapIndex(key)
		for _, other := range append(alternatives(old), reflect.Value{}) {
			v.SetMapIndex(key, other)
			m.note(path)
		}
		v.SetMapIndex(key, old)
	}
}

// try sets v to other values.
func (m *mutation) try(v reflect.Value, path string) {
	if m.read[path] {
		return
	}
	old := reflect.New(v.Type()).Elem()
	old.Set(v)
	for _, other := range alternatives(v) {
		v.Set(other)
		m.note(path)
	}
	v.Set(old)
}

// note says that a path, and with it all above it, is read if the domain is another.
func (m *mutation) note(path string) {
	if m.read[path] {
		return
	}
	if _, reason := excuse(path); reason != "" {
		if m.tried[path]++; m.tried[path] > enough {
			return
		}
		if domain.Allowed(m.vmi, m.facts.Cluster) != nil {
			return // what is refused whatever is converted, is not read
		}
	}
	if reflect.DeepEqual(m.convert(), m.before) {
		return
	}
	for path != "" {
		m.read[path] = true
		path = path[:max(strings.LastIndexAny(path, ".[{"), 0)]
	}
}

// alternatives are other values than v: nothing, and the likes of it.
func alternatives(v reflect.Value) []reflect.Value {
	var out []reflect.Value
	if !v.IsZero() {
		out = append(out, reflect.Zero(v.Type()))
	}
	other := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Bool:
		other.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		other.SetInt(v.Int() + 1)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		other.SetUint(v.Uint() + 1)
	case reflect.String:
		other.SetString(v.String() + "x")
	case reflect.Slice:
		other.Set(reflect.Append(v.Slice(0, v.Len()), reflect.Zero(v.Type().Elem())))
	case reflect.Pointer:
		other.Set(reflect.New(v.Type().Elem()))
		for _, e := range alternatives(other.Elem()) {
			p := reflect.New(v.Type().Elem())
			p.Elem().Set(e)
			out = append(out, p)
		}
	case reflect.Struct:
		q, ok := v.Interface().(resource.Quantity)
		if !ok {
			return out
		}
		q.Add(resource.MustParse("1Gi"))
		other.Set(reflect.ValueOf(q))
	default:
		return out
	}
	return append(out, other)
}
