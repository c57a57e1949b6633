// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// Manifests of VirtualMachines and what they refer to.
const (
	plainVM = "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, uid: u-1}, spec: {runStrategy: Halted, template: {spec: {domain: {devices: {}}, hostname: h}}}}\n"
	typedVM = "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, uid: u-1}, spec: {runStrategy: Always, " +
		"instancetype: {kind: VirtualMachineInstancetype, name: it}, preference: {name: pref}, template: {spec: {domain: {devices: {}}, volumes: [{name: v, emptyDisk: {capacity: 1Gi}}]}}}}\n"
	instanceType = "---\n{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineInstancetype, metadata: {name: it}, spec: {cpu: {guest: 4}, memory: {guest: 3Gi}, annotations: {a: it}}}\n"
	preference   = "---\n{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineClusterPreference, metadata: {name: pref}, spec: {cpu: {preferredCPUTopology: threads}, " +
		"machine: {preferredMachineType: pc-q35-9.9}, devices: {preferredDiskBus: scsi}, annotations: {b: pref}}}\n"
	revision = "---\n{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: rev, labels: {instancetype.kubevirt.io/object-name: it, instancetype.kubevirt.io/object-version: v1beta1}, " +
		"ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachine, name: vm, uid: u-1, controller: true}]}, revision: 0, " +
		"data: {apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineInstancetype, metadata: {name: it}, spec: {cpu: {guest: 2}, memory: {guest: 7Gi}}}}\n"
)

// withType is a VM with one matcher and a status.
func withType(matcher, template, rest string) string {
	return "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, uid: u-1}, spec: {runStrategy: Always, instancetype: {" + matcher + "}, template: {spec: {domain: {devices: {}" + template + "}}}}" + rest + "}\n"
}

const stored = ", status: {instancetypeRef: {name: it, kind: VirtualMachineInstancetype, controllerRevisionRef: {name: rev}}}"

// start reads manifests and starts their VM.
func start(t *testing.T, text string, raw bool) (*offline.Cluster, error) {
	t.Helper()
	c := cluster(t, text)
	if err := c.Start(raw); err != nil {
		return c, err
	}
	var err error
	if !raw {
		c.VMI, err = offline.Default(c.VMI, c.KubeVirt)
	}
	return c, err
}

func TestStart_Origins(t *testing.T) {
	typed := typedVM + instanceType + preference
	for name, tt := range map[string]struct {
		text        string
		raw         bool
		field, want string // an empty want is a field that is not set
		from        string
	}{
		"template":                      {text: plainVM, field: "spec.hostname", want: "h", from: "the template of VirtualMachine default/vm"},
		"default of VirtualMachines":    {text: plainVM, field: "spec.domain.machine.type", want: "q35", from: "a default of new VirtualMachines"},
		"default of started ones":       {text: plainVM, field: "spec.domain.firmware.uuid", want: "d633a622-2335-5606-93ae-d432b7c7f2d2", from: "a default of VirtualMachines that are started"},
		"default of guests":             {text: plainVM, field: "spec.domain.cpu.model", want: "host-model", from: "a default of new VirtualMachineInstances"},
		"not set":                       {text: plainVM, field: "spec.subdomain", from: "not set"},
		"no such field":                 {text: plainVM, field: "spec.hostname.x[y", from: "not set"},
		"raw":                           {text: plainVM, raw: true, field: "spec.domain.machine.type", from: "not set"},
		"instance type":                 {text: typed, field: "spec.domain.memory.guest", want: "3Gi", from: "instance type VirtualMachineInstancetype default/it"},
		"annotation of instance type":   {text: typed, field: "metadata.annotations[a]", want: "it", from: "instance type VirtualMachineInstancetype default/it"},
		"topology by preference":        {text: typed, field: "spec.domain.cpu.threads", want: "4", from: "instance type VirtualMachineInstancetype default/it"},
		"preference":                    {text: typed, field: "spec.domain.devices.disks[v].disk.bus", want: "scsi", from: "preference VirtualMachineClusterPreference pref"},
		"preference before it is used":  {text: typed, field: "spec.domain.machine.type", want: "pc-q35-9.9", from: "preference VirtualMachineClusterPreference pref"},
		"annotation of preference":      {text: typed, field: "metadata.annotations[b]", want: "pref", from: "preference VirtualMachineClusterPreference pref"},
		"parts":                         {text: typed, field: "spec.domain.devices.disks[0]", from: "preference VirtualMachineClusterPreference pref (disk.bus); a default of VirtualMachines that are started (name)"},
		"revision in the status":        {text: withType("kind: VirtualMachineInstancetype, name: it", "", stored) + instanceType + revision, field: "spec.domain.memory.guest", want: "7Gi", from: "instance type ControllerRevision default/rev"},
		"revision that the VM names":    {text: withType("kind: VirtualMachineInstancetype, name: it, revisionName: rev", "", "") + revision, field: "spec.domain.memory.guest", want: "7Gi", from: "instance type ControllerRevision default/rev"},
		"status of another type":        {text: withType("kind: VirtualMachineInstancetype, name: it", "", strings.Replace(stored, "name: it", "name: old", 1)) + instanceType, field: "spec.domain.memory.guest", want: "3Gi", from: "instance type VirtualMachineInstancetype default/it"},
		"type that a claim names":       {text: inferring("persistentVolumeClaim: {claimName: c}", "") + instanceType + claimOfType, field: "spec.domain.memory.guest", want: "3Gi", from: "instance type VirtualMachineInstancetype default/it"},
		"type that a DataVolume names":  {text: inferring("dataVolume: {name: c}", "") + instanceType + strings.NewReplacer("apiVersion: v1, kind: PersistentVolumeClaim", "apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume").Replace(claimOfType), field: "spec.domain.memory.guest", want: "3Gi", from: "instance type VirtualMachineInstancetype default/it"},
		"type that nothing has to name": {text: inferring("emptyDisk: {capacity: 1Gi}", ", inferFromVolumeFailurePolicy: Ignore"), field: "spec.hostname", want: "h", from: "the template of VirtualMachine default/vm"},
		"a cluster that expands": {text: typed + "---\n{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, spec: {configuration: {instancetype: {referencePolicy: expand}}}}",
			field: "spec.domain.memory.guest", want: "3Gi", from: "instance type VirtualMachineInstancetype default/it"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := start(t, tt.text, tt.raw)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.From(tt.field); got != tt.from {
				t.Errorf("%s is from %q, want %q", tt.field, got, tt.from)
			}
			if text := marshal(t, c.VMI); tt.want != "" && !strings.Contains(text, ": "+tt.want+"\n") && !strings.Contains(text, ": \""+tt.want+"\"\n") {
				t.Errorf("%s is not %q:\n%s", tt.field, tt.want, text)
			}
		})
	}
}

// inferring is a VM whose instance type is that of a volume.
func inferring(volume, policy string) string {
	return "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {runStrategy: Always, instancetype: {inferFromVolume: v" + policy +
		"}, template: {spec: {domain: {devices: {}}, hostname: h, volumes: [{name: v, " + volume + "}]}}}}\n"
}

const claimOfType = "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c, labels: {instancetype.kubevirt.io/default-instancetype: it, instancetype.kubevirt.io/default-instancetype-kind: virtualmachineinstancetype}}}\n"

func TestStart_Errors(t *testing.T) {
	const at = "test.yaml: document 1 (line 1): VirtualMachine default/vm: "
	typed := withType("kind: VirtualMachineInstancetype, name: it", "", "")
	for name, tt := range map[string]struct {
		text, want string
		raw        bool
		class      error
	}{
		"no instance type":         {text: typed, want: at + "spec.instancetype: VirtualMachineInstancetype default/it not found; add its manifest with -f, or correct spec.instancetype", class: render.ErrMissingFact},
		"no instance type, raw":    {text: typed, raw: true, want: at + "spec.instancetype: VirtualMachineInstancetype default/it not found; add", class: render.ErrMissingFact},
		"another namespace's":      {text: typed + strings.Replace(instanceType, "name: it", "name: it, namespace: other", 1), want: at + "spec.instancetype: VirtualMachineInstancetype default/it not found", class: render.ErrMissingFact},
		"a cluster type":           {text: withType("name: it", "", "") + instanceType, want: at + "spec.instancetype: VirtualMachineClusterInstancetype it not found", class: render.ErrMissingFact},
		"no preference":            {text: typedVM + instanceType, want: at + "spec.preference: VirtualMachineClusterPreference pref not found; add", class: render.ErrMissingFact},
		"no revision":              {text: withType("name: it, revisionName: rev", "", "") + instanceType, want: at + "spec.instancetype: ControllerRevision default/rev not found; add", class: render.ErrMissingFact},
		"no revision of status":    {text: withType("kind: VirtualMachineInstancetype, name: it", "", stored) + instanceType, want: at + "status.instancetypeRef.controllerRevisionRef: ControllerRevision default/rev not found; add its manifest with -f, or remove the status to use the current object", class: render.ErrMissingFact},
		"a revision of something":  {text: withType("name: it, revisionName: rev", "", "") + strings.Replace(revision, "kind: VirtualMachineInstancetype, metadata", "kind: Thing, metadata", 1), want: at + "spec.instancetype: ControllerRevision default/rev holds no instance type or preference", class: render.ErrInvalid},
		"another kind":             {text: withType("name: it, kind: Pod", "", ""), want: at + "spec.instancetype: got unexpected kind in InstancetypeMatcher: Pod; correct", class: render.ErrInvalid},
		"no name":                  {text: withType("kind: VirtualMachineInstancetype", "", ""), want: at + "spec.instancetype: Either Name or InferFromVolume should be provided", class: render.ErrInvalid},
		"no claim to infer from":   {text: inferring("persistentVolumeClaim: {claimName: c}", ""), want: at + "spec.instancetype.inferFromVolume: PersistentVolumeClaim default/c not found; add", class: render.ErrMissingFact},
		"nothing to infer from":    {text: inferring("emptyDisk: {capacity: 1Gi}", ""), want: at + "spec.instancetype.inferFromVolume: unable to infer defaults from volume v", class: render.ErrInvalid},
		"no template":              {text: "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {runStrategy: Always}}", want: at + "spec.template: missing virtual machine template; add", class: render.ErrInvalid},
		"both strategies":          {text: strings.Replace(plainVM, "runStrategy", "running: true, runStrategy", 1), want: at + "running and runstrategy are mutually exclusive", class: render.ErrInvalid},
		"all conflicts":            {text: withType("kind: VirtualMachineInstancetype, name: it", ", cpu: {cores: 2}, memory: {guest: 1Gi}", "") + instanceType, want: at + "spec.template.spec.domain.cpu.cores: is also set by instance type VirtualMachineInstancetype default/it; remove it from the template, or choose another instance type\n" + at + "spec.template.spec.domain.memory.guest: is also set", class: render.ErrInvalid},
		"requirements of the pref": {text: typedVM + instanceType + strings.Replace(preference, "spec: {", "spec: {requirements: {cpu: {guest: 8}}, ", 1), want: at + "spec.instancetype: failure checking preference requirements: insufficient CPU", class: render.ErrInvalid},
		"a network of no kind": {text: plainVM + "---\n{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, spec: {configuration: {network: {defaultNetworkInterface: slirp}}}}",
			want: at + "slirp interface is deprecated as of v1.3; correct the VirtualMachine", class: render.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := start(t, tt.text, tt.raw)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || !errors.Is(err, tt.class) {
				t.Errorf("error\n%v\nwant\n%s", err, tt.want)
			}
		})
	}
}

// What a cluster stores for instance types does not change the guest.
func TestStart_PoliciesSamePod(t *testing.T) {
	pod := map[string]string{}
	for _, policy := range []string{"reference", "expandAll"} {
		c, err := start(t, typedVM+instanceType+preference+"---\n{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, spec: {configuration: {instancetype: {referencePolicy: "+policy+"}}}}", false)
		if err != nil {
			t.Fatal(err)
		}
		c.LauncherImage = "image"
		in, err := c.Input(render.LauncherPod)
		if err != nil {
			t.Fatal(err)
		}
		got, err := template.Default().Render(render.LauncherPod, in)
		if err != nil {
			t.Fatal(err)
		}
		pod[policy] = marshal(t, got.Spec)
	}
	if pod["reference"] != pod["expandAll"] {
		t.Errorf("Pods differ:\n%s\n%s", pod["reference"], pod["expandAll"])
	}
}

func TestStart_Idle(t *testing.T) {
	c := cluster(t, vmi)
	before := c.VMI
	if err := c.Start(false); err != nil || c.VMI != before || c.From("spec.domain") != "" {
		t.Errorf("VMI %v, from %q, error %v", c.VMI, c.From("spec.domain"), err)
	}
}

// The claims of dataVolumeTemplates are known as far as their templates define them, and manifests take precedence.
func TestClaims_OfTemplates(t *testing.T) {
	machine := func(dv string) string {
		return "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {runStrategy: Always, dataVolumeTemplates: [{metadata: {name: d}, spec: {" + dv + "}}], " +
			"template: {spec: {domain: {devices: {}}, volumes: [{name: v, dataVolume: {name: d}}]}}}}\n"
	}
	for name, tt := range map[string]struct {
		text string
		want corev1.PersistentVolumeMode
	}{
		"a claim":                     {machine("pvc: {volumeMode: Block}"), "Block"},
		"storage in full":             {machine("storage: {volumeMode: Block, accessModes: [ReadWriteOnce]}"), "Block"},
		"storage by a StorageProfile": {machine("storage: {resources: {requests: {storage: 1Gi}}}"), ""},
		"a manifest":                  {machine("pvc: {volumeMode: Block}") + "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: d}, spec: {volumeMode: Filesystem}}", "Filesystem"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := start(t, tt.text, false)
			if err != nil {
				t.Fatal(err)
			}
			claim := c.Claims()["d"]
			if tt.want == "" && claim != nil || tt.want != "" && (claim == nil || claim.Spec.VolumeMode == nil || *claim.Spec.VolumeMode != tt.want) {
				t.Errorf("claim %v, want volumeMode %q", claim, tt.want)
			}
		})
	}
}
