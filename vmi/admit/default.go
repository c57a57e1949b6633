// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// defaulting is a guest that gets its defaults.
type defaulting struct {
	vmi    *v1.VirtualMachineInstance
	spec   *v1.VirtualMachineInstanceSpec
	config *Config
	arch   string
}

// step is one of the defaults. Those of the shape change what the guest's Pods and its domain are made of, and would be
// missed where a guest has not been created.
type step struct {
	name  string
	apply func(*defaulting)
	shape bool
}

// steps are all defaults, in the order in which they build on one another.
var steps = []step{
	{"architecture", defaultArchitecture, true}, // all others depend on it
	{"machine", defaultMachine, true},
	{"cpu-request", defaultCPURequest, true},
	{"cpu-topology", defaultTopology, true}, // counts the CPUs requested
	{"cpu-model", defaultCPUModel, true},
	{"guest-memory", defaultMemory, true},
	{"pull-policies", defaultPullPolicies, true},
	{"pod-network", defaultNetwork, true},
	{"bindings", defaultBindings, false},
	{"volume-disks", defaultVolumeDisks, true},
	{"disk-buses", defaultDiskBuses, false}, // of the disks just added as well
	{"bootloader", defaultBootloader, true},
	{"acpi", defaultACPI, false}, // before the API's, which turns it on
	{"watchdog", defaultWatchdog, false},
	{"api", defaultAPI, false},
	{"hyperv", defaultHyperv, false},         // looks at what the API has enabled
	{"live-update", defaultLiveUpdate, true}, // counts the CPUs and the memory from above
	{"versions", defaultVersions, false},
	{"annotations", defaultAnnotations, true},
	{"finalizer", defaultFinalizer, false},
	{"status", defaultStatus, false},
	{"runtime-user", defaultRuntimeUser, true},
}

// Default gives a guest that is about to be created what it does not say; the package comment lists it. What it says
// already stays, so that a second call changes nothing. A guest that exists is not for it: an update has passed here before.
func Default(vmi *v1.VirtualMachineInstance, c Config) { apply(vmi, c, false) }

// DefaultShape is the part of [Default] without which a guest that is not created gets other Pods, or another domain: the
// architecture, the machine, the CPU, pull policies, the Pod's network, disks of volumes, the bootloader, annotations about
// the hardware and the user. Nothing of it says that the guest was created.
func DefaultShape(vmi *v1.VirtualMachineInstance, c Config) { apply(vmi, c, true) }

func apply(vmi *v1.VirtualMachineInstance, c Config, shapeOnly bool) {
	d := &defaulting{vmi: vmi, spec: &vmi.Spec, config: &c}
	for _, s := range steps {
		if s.shape || !shapeOnly {
			s.apply(d)
		}
	}
	// The API's defaults point to variables that all guests would share.
	vmi.DeepCopy().DeepCopyInto(vmi)
}

// DefaultUpdate undoes what nobody but the control plane may write: the resource has no status of its own, so a user who
// replaces a guest writes the status that was read with it.
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

// annotate sets an annotation that is not there.
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

// runtimeUser is the user id of qemu in the launcher image.
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
	if d.vmi.Status.RuntimeUser == 0 && !d.config.GateEnabled(vmirules.Root) {
		d.vmi.Status.RuntimeUser = runtimeUser
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

func isFalse(b *bool) bool { return b != nil && !*b }
