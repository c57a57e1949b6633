// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// supported refuses what no stage renders yet, so that no Pod silently lacks something its guest was promised.
func supported(d *Draft) error {
	errs := slices.Concat(
		unsupportedDomain(d),
		unsupportedDevices(&d.vmi.Spec.Domain.Devices),
		unsupportedVolumes(d),
	)
	return errors.Join(errs...)
}

func unsupportedDomain(d *Draft) (errs []error) {
	domain := &d.vmi.Spec.Domain
	if tpm := domain.Devices.TPM; tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) && isTrue(tpm.Persistent) {
		errs = append(errs, unsupported("spec.domain.devices.tpm.persistent", "storage for the guest's TPM state"))
	}
	errs = append(errs, unsupportedFirmware(domain.Firmware)...)
	if s := d.vmi.Status.ChangedBlockTracking; s != nil &&
		(s.State == v1.ChangedBlockTrackingInitializing || s.State == v1.ChangedBlockTrackingEnabled) {
		errs = append(errs, unsupported("status.changedBlockTracking", "changed block tracking"))
	}
	return errs
}

func unsupportedFirmware(f *v1.Firmware) (errs []error) {
	if f == nil {
		return nil
	}
	if f.Bootloader != nil && f.Bootloader.EFI != nil && isTrue(f.Bootloader.EFI.Persistent) {
		errs = append(errs, unsupported("spec.domain.firmware.bootloader.efi.persistent", "storage for firmware variables"))
	}
	return errs
}

func unsupportedDevices(devices *v1.Devices) (errs []error) {
	for i, disk := range devices.Disks {
		if disk.LUN != nil && disk.LUN.Reservation {
			errs = append(errs, unsupported(fmt.Sprintf("spec.domain.devices.disks[%d].lun.reservation", i), "SCSI reservations"))
		}
	}
	return errs
}

// unsupportedVolumes refuses what is rendered behind a feature gate alone.
func unsupportedVolumes(d *Draft) (errs []error) {
	for i := range d.vmi.Spec.Volumes {
		if d.vmi.Spec.Volumes[i].ContainerPath != nil && !d.config.GateEnabled(gateContainerPaths) {
			errs = append(errs, &Error{
				Field: elementOf(vmiVolumes, i) + ".containerPath", Reason: "needs feature gate " + gateContainerPaths,
				Remedy: "add it to developerConfiguration.featureGates, or remove the volume", Err: ErrUnsupported,
			})
		}
	}
	return errs
}

func isTrue(b *bool) bool { return b != nil && *b }
