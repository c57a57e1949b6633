// SPDX-License-Identifier: Apache-2.0

package template

import "strconv"

const skipBackupHooks = "kubevirt.io/skip-backup-hooks"

// VeleroHooks generates the annotations by which Velero freezes the guest's file systems during a backup
// (pre.hook.backup.velero.io/* and post.hook.backup.velero.io/*). The annotation kubevirt.io/skip-backup-hooks of the VMI
// disables them, otherwise Config.SkipBackupHooks does.
type VeleroHooks struct{}

// Keys returns the keys of all annotations that it may generate, sorted.
func (VeleroHooks) Keys() []string {
	return []string{
		"post.hook.backup.velero.io/command", "post.hook.backup.velero.io/container",
		"pre.hook.backup.velero.io/command", "pre.hook.backup.velero.io/container", "pre.hook.backup.velero.io/timeout",
	}
}

// Annotations implements AnnotationGenerator. It returns no error.
func (VeleroHooks) Annotations(in Input) (map[string]string, error) {
	skip := in.Config.SkipBackupHooks
	if text, ok := in.VMI.Annotations[skipBackupHooks]; ok {
		parsed, err := strconv.ParseBool(text)
		skip = err == nil && parsed
	}
	if skip {
		return nil, nil
	}
	annotations := map[string]string{"pre.hook.backup.velero.io/timeout": "60s"}
	for _, hook := range []struct{ when, flag string }{{"pre", "--freeze"}, {"post", "--unfreeze"}} {
		prefix := hook.when + ".hook.backup.velero.io/"
		annotations[prefix+"container"] = computeContainer
		annotations[prefix+"command"] = `["/usr/bin/virt-freezer", "` + hook.flag +
			`", "--name", ` + strconv.Quote(in.VMI.Name) + `, "--namespace", ` + strconv.Quote(in.VMI.Namespace) + "]"
	}
	return annotations, nil
}
