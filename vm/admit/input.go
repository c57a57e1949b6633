// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
	guests "github.com/virtloom/virtloom/vmi/admit"
)

// Config holds everything but the objects that defaults and checks depend on.
type Config struct {
	// VMIs is the configuration for VMIs: of the cluster, and of the request.
	VMIs guests.Config
	// SerialNumber is the serial number of a new VM without one; empty leaves it unset. Its firmware UUID is
	// VMIs.Request.FirmwareUUID.
	SerialNumber types.UID
}

// cluster returns what decides about the devices that a VMI gets without being asked.
func (c *Config) cluster() instancetype.Cluster {
	return instancetype.Cluster{NetworkInterface: c.VMIs.NetworkInterface, ForbidPodBridge: c.VMIs.ForbidPodBridge}
}

// Input is the input of one request. The functions of this package do not modify it.
type Input struct {
	// VM is the object of the request, and Old the stored one; nil on creation.
	VM, Old *v1.VirtualMachine
	// VMI is the VM's VMI; nil if it has none. It matters for volume requests.
	VMI *v1.VirtualMachineInstance
	// Objects are what was read of the returned refs.
	Objects instancetype.Objects
	// Config is the configuration.
	Config Config
}
