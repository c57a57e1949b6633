// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"strconv"
)

const skipBackupHooks = "kubevirt.io/skip-backup-hooks"

// network annotates the Pod for service meshes: traffic of masqueraded guests comes out of a bridge of this name.
func network(d *Draft) error {
	for _, iface := range d.vmi.Spec.Domain.Devices.Interfaces {
		if iface.Masquerade != nil {
			d.Annotation("traffic.sidecar.istio.io/kubevirtInterfaces", "k6t-eth0")
			d.Annotation("istio.io/reroute-virtual-interfaces", "k6t-eth0")
		}
	}
	return nil
}

// storage annotates the Pod for backup tools, which freeze the guest's file systems while they copy.
func storage(d *Draft) error {
	skip := d.config.SkipBackupHooks
	if text, ok := d.vmi.Annotations[skipBackupHooks]; ok {
		parsed, err := strconv.ParseBool(text)
		skip = err == nil && parsed
	}
	if skip {
		return nil
	}
	for _, hook := range []struct{ when, flag string }{{"pre", "--freeze"}, {"post", "--unfreeze"}} {
		prefix := hook.when + ".hook.backup.velero.io/"
		d.Annotation(prefix+"container", computeContainer)
		d.Annotation(prefix+"command", fmt.Sprintf(`["/usr/bin/virt-freezer", %q, "--name", %q, "--namespace", %q]`,
			hook.flag, d.vmi.Name, d.vmi.Namespace))
	}
	d.Annotation("pre.hook.backup.velero.io/timeout", "60s")
	return nil
}
