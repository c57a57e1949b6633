// SPDX-License-Identifier: Apache-2.0

// Package hostdevice offers the devices of a node that the cluster permits for VMIs
// (spec.configuration.permittedHostDevices of the KubeVirt object) to the node's kubelet, and says
// which of them a launcher Pod has got.
//
// [Host] finds them in sysfs: PCI devices that are bound to vfio-pci, by vendor and device;
// mediated devices, by the name of their type; USB devices, by vendor and product. [Offers] runs one
// device plugin (package deviceplugin) for each resource that the node has, follows changes of the
// object and of the node, and withdraws what is not permitted any more. Resources with
// externalResourceProvider are left to the device plugins of others.
//
// The kubelet puts the addresses of the devices that it allocates into the environment of the
// launcher's container, in KubeVirt's variables: PCI_RESOURCE_, MDEV_PCI_RESOURCE_ or USB_RESOURCE_,
// followed by the name of the resource in capitals. [Launchers] reads them there, whoever has
// provided the resource.
//
// The ID of a PCI or mediated device is the number of its IOMMU group, that of a USB device its port,
// so that they are the same after a restart. Of several devices in one IOMMU group that belong to one
// resource, only the first is offered: they cannot be given to different VMIs.
package hostdevice
