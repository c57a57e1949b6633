// SPDX-License-Identifier: Apache-2.0

package convert_test

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

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// notOfTheDomain are the fields of a VMI's spec that no conversion reads, including all below them,
// with the reason. If only the presence of a field matters, the fields below it are written as .*.
var notOfTheDomain = map[string]string{
	// The Pod and its scheduling.
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

	// Network services; the interface is the same.
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

	// Content of volumes; its location on the node is in the facts.
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

// Owners of fields.
const (
	scheduling  = "of the Pod: where it may run"
	credentials = "the node's, which propagates them if its facts say so"
	network     = "the node's, which sets the network up"
	seed        = "of the data that cloud-init and DHCP hand to the guest"
	content     = "the node's, which provides the file"
)

// TestConvert_ReadsEveryField fails for a field of the spec that the conversion ignores. A field is
// read if another value, or none, changes the domain of a VMI of the corpus or the error, on the
// same node. A field that does not concern the domain is listed with the reason; an entry that does
// not exist, or is read, fails as well.
func TestConvert_ReadsEveryField(t *testing.T) {
	t.Parallel()
	known, read, tried := map[string]bool{}, map[string]bool{}, map[string]int{}
	declareFields(reflect.TypeFor[v1.VirtualMachineInstanceSpec](), "spec", known, nil)
	guests := domainfixture.Corpus(t)
	guests["hotplug-later"] = hotplugged(guests["hotplug"].DeepCopy())
	for _, name := range []string{"hugepages", "memory-limit-only"} { // without defaults applied
		guests[name+"-bare"] = guests[name].DeepCopy()
		guests[name+"-bare"].Spec.Domain.Memory.Guest = nil
	}
	for _, name := range slices.Sorted(maps.Keys(guests)) {
		vmi := guests[name].DeepCopy()
		m := mutation{vmi: vmi, facts: assume.Facts(vmi), read: read, tried: tried}
		if m.before = m.convert(); m.before == nil {
			continue // no domain, see refusedGuests
		}
		m.walk(reflect.ValueOf(&vmi.Spec).Elem(), "spec")
		if !reflect.DeepEqual(m.convert(), m.before) {
			t.Fatalf("%s has changed: the test does not undo its changes", name)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(known)) {
		entry, reason := excuse(path)
		switch {
		case read[path] && reason != "":
			t.Errorf("%s is read, but notOfTheDomain has %s: %s", path, entry, reason)
		case !read[path] && reason == "":
			t.Errorf("no conversion reads %s: convert or reject it, or add its owner to notOfTheDomain", path)
		}
	}
	for path := range notOfTheDomain {
		if !known[strings.TrimSuffix(path, ".*")] {
			t.Errorf("notOfTheDomain has %s, which is not a field", path)
		}
	}
}

// hotplugged returns a VMI that was started with its first disk only: the others are not attached
// yet.
func hotplugged(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: vmi.Spec.Volumes[0].Name}}
	return vmi
}

// excuse returns the entry for a path or one of its parents.
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

// jsonFields calls f for every field of a struct with its JSON name, including those of inlined
// structs. A nil inlined pointer has no fields.
func jsonFields(t reflect.Type, f func(name string, index []int)) {
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			f(name, field.Index)
		}
	}
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// isLeaf reports whether a type is encoded as a single value.
func isLeaf(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}

// declareFields records the paths of all fields of a type; above are the types on the path, which
// are not visited again.
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

// mutation changes one field of a VMI at a time and compares the results.
type mutation struct {
	vmi    *v1.VirtualMachineInstance
	facts  convert.Facts
	before *libvirtxml.Domain
	read   map[string]bool
	// tried counts the attempts at fields that are listed as not read.
	tried map[string]int
}

// enough is the number of attempts at a field that is listed as not read.
const enough = 20

// convert returns the domain, nil on errors.
func (m *mutation) convert() *libvirtxml.Domain {
	d, err := convert.Convert(m.vmi, m.facts)
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

// entries tries maps without each entry and with other values.
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

// note records that a path, with all its parents, is read if the domain differs.
func (m *mutation) note(path string) {
	if m.read[path] {
		return
	}
	if _, reason := excuse(path); reason != "" {
		if m.tried[path]++; m.tried[path] > enough {
			return
		}
		if convert.Allowed(m.vmi, m.facts.Cluster) != nil {
			return // rejected in any case: not read
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

// alternatives returns other values for v: the zero value, and similar ones.
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
