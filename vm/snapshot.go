// SPDX-License-Identifier: Apache-2.0

package vm

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// MaxDataVolumeTemplates is how many DataVolumes one VM may create: whether it may copy their sources costs requests, for
// each of them. (KubeVirt has no limit; no VM can have more disks.)
const MaxDataVolumeTemplates = 256

// Config is the configuration of decisions.
type Config struct {
	// Stage applies changes at the next start only. (KubeVirt: vmRolloutStrategy)
	Stage bool
	// CPURatio is the number of vCPUs that share a CPU; zero means ten. (KubeVirt: cpuAllocationRatio)
	CPURatio int64
	// Policy is what becomes of instance types. (KubeVirt: instancetype.referencePolicy)
	Policy instancetype.Policy
	// Cluster decides which devices a VMI gets without being asked.
	Cluster instancetype.Cluster
}

// Snapshot is the complete input of one decision. Decide does not modify it.
type Snapshot struct {
	// VM is the object from the cache.
	VM *v1.VirtualMachine
	// VMI is the VMI of the VM's name, whoever controls it; nil if there is none.
	VMI *v1.VirtualMachineInstance
	// DataVolumes and Claims are those of the VM's namespace that its spec names, by name.
	DataVolumes map[string]*cdiv1.DataVolume
	Claims      map[string]*corev1.PersistentVolumeClaim
	// Revisions are the ControllerRevisions whose controller is the VM.
	Revisions []*appsv1.ControllerRevision
	// Objects are the instance types, preferences and revisions that were read; see Plan.Need.
	Objects instancetype.Objects
	// Denied maps DataVolumes that the VM's service account may not create to the reason.
	Denied map[string]string
	// NoSource maps DataVolumes whose source claim does not exist to its name.
	NoSource map[string]string
	// Pending are own writes that the caches have not observed yet; while there is one, nothing is created or deleted.
	Pending []Write
	// Failure is the failure of an action; set after acting.
	Failure *Failure
	// Config is the current configuration.
	Config Config
}

// Write is an own write.
type Write struct {
	Verb Verb
	// Name is the name of the written object.
	Name string
}

// expects reports whether a write of this kind was not observed yet.
func (s Snapshot) expects(verb Verb) bool {
	for _, w := range s.Pending {
		if w.Verb == verb {
			return true
		}
	}
	return false
}
