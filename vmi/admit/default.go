// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// defaulting is a VMI whose defaults are being set.
type defaulting struct {
	vmi    *v1.VirtualMachineInstance
	spec   *v1.VirtualMachineInstanceSpec
	config *Config
	arch   string
}

// step is one of the defaults. Those with shape determine the VMI's Pods and domain, and are needed for VMIs that were not
// created through an API server.
type step struct {
	name  string
	apply func(*defaulting)
	shape bool
}

// steps lists all defaults; each may depend on those before it.
var steps = []step{
	{"architecture", defaultArchitecture, true}, // all others depend on it
	{"machine", defaultMachine, true},
	{"cpu-request", defaultCPURequest, true},
	{"cpu-topology", defaultTopology, true}, // counts the requested CPUs
	{"cpu-model", defaultCPUModel, true},
	{"guest-memory", defaultMemory, true},
	{"pull-policies", defaultPullPolicies, true},
	{"pod-network", defaultNetwork, true},
	{"bindings", defaultBindings, false},
	{"volume-disks", defaultVolumeDisks, true},
	{"disk-buses", defaultDiskBuses, false}, // also of the disks just added
	{"bootloader", defaultBootloader, true},
	{"acpi", defaultACPI, false}, // before the API's, which enables it
	{"watchdog", defaultWatchdog, false},
	{"api", defaultAPI, false},
	{"hyperv", defaultHyperv, false},         // examines what the API has enabled
	{"live-update", defaultLiveUpdate, true}, // counts the CPUs and memory set above
	{"versions", defaultVersions, false},
	{"annotations", defaultAnnotations, true},
	{"finalizer", defaultFinalizer, false},
	{"status", defaultStatus, false},
	{"runtime-user", defaultRuntimeUser, true},
}

// Default sets the unset fields of a VMI that is about to be created; the package comment lists them. It never changes a
// set field, so that it is idempotent. Do not call it for an existing VMI, whose creation has been defaulted already.
func Default(vmi *v1.VirtualMachineInstance, c Config) { applyDefaults(vmi, c, false) }

// DefaultShape sets the subset of [Default] that determines the Pods and the domain of a VMI that is not created: the
// architecture, machine, CPU, pull policies, Pod network, disks of volumes, bootloader, annotations about the hardware, and
// the user. It sets no field that marks a VMI as created.
func DefaultShape(vmi *v1.VirtualMachineInstance, c Config) { applyDefaults(vmi, c, true) }

func applyDefaults(vmi *v1.VirtualMachineInstance, c Config, shapeOnly bool) {
	d := &defaulting{vmi: vmi, spec: &vmi.Spec, config: &c}
	for _, s := range steps {
		if s.shape || !shapeOnly {
			s.apply(d)
		}
	}
	// The API's defaults point to shared variables.
	vmi.DeepCopy().DeepCopyInto(vmi)
}

// DefaultUpdate reverts fields that only the control plane may write: the resource has no status subresource, so that a
// user who replaces a VMI also writes the status that was read with it.
func DefaultUpdate(old, updated *v1.VirtualMachineInstance, c Config) {
	if !c.Request.Privileged {
		old.Status.DeepCopyInto(&updated.Status)
	}
}

func defaultVersions(d *defaulting) {
	d.annotate(v1.ControllerAPILatestVersionObservedAnnotation, v1.ApiLatestVersion)
	d.annotate(v1.ControllerAPIStorageVersionObservedAnnotation, v1.ApiStorageVersion)
}

func defaultAnnotations(d *defaulting) {
	if onPCIExpress(d.arch, d.spec.Domain.Machine.Type) {
		d.annotate(v1.PciTopologyVersionAnnotation, v1.PciTopologyVersionV3)
	}
	if d.config.EmulatorThreadParity && d.spec.Domain.CPU.IsolateEmulatorThread {
		d.annotate(v1.EmulatorThreadCompleteToEvenParity, "")
	}
	if s := d.spec.Domain.LaunchSecurity; s != nil && s.TDX != nil {
		d.annotate(v1.QGSSocketPathAnnotation, cmp.Or(d.config.QGSSocket, usualQGSSocket))
	}
}

// annotate sets an annotation unless it exists.
func (d *defaulting) annotate(key, value string) {
	if _, there := d.vmi.Annotations[key]; there {
		return
	}
	if d.vmi.Annotations == nil {
		d.vmi.Annotations = map[string]string{}
	}
	d.vmi.Annotations[key] = value
}

func defaultFinalizer(d *defaulting) {
	if !slices.Contains(d.vmi.Finalizers, v1.VirtualMachineInstanceFinalizer) {
		d.vmi.Finalizers = append(d.vmi.Finalizers, v1.VirtualMachineInstanceFinalizer)
	}
}

// runtimeUser is the user ID of qemu in the launcher image.
const runtimeUser = 107

func defaultStatus(d *defaulting) {
	st := &d.vmi.Status
	if st.Phase == v1.VmPhaseUnset {
		st.Phase = v1.Pending
	}
	entered := slices.ContainsFunc(st.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstancePhaseTransitionTimestamp) bool {
		return t.Phase == v1.Pending
	})
	if st.Phase == v1.Pending && !entered {
		st.PhaseTransitionTimestamps = append(st.PhaseTransitionTimestamps,
			v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: v1.Pending, PhaseTransitionTimestamp: d.config.Request.Now})
	}
}

func defaultRuntimeUser(d *defaulting) {
	if d.vmi.Status.RuntimeUser == 0 && !d.config.gateEnabled(validate.Root) {
		d.vmi.Status.RuntimeUser = runtimeUser
	}
}
