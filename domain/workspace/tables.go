// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// tables writes the ACPI tables of a secret volume to a directory, if the VMI's firmware refers to
// the volume, and returns it; empty if not.
func (w generated) tables(ctx context.Context, v volume) (string, error) {
	wanted := v.acpiTables()
	if len(wanted) == 0 || v.Secret == nil {
		return "", nil
	}
	dir := v.file(".tables")
	const field = "secret.secretName"
	if exists(dir) {
		return w.publishedTables(ctx, v, dir, wanted)
	}
	files, err := w.configFiles(ctx, v.vmi, objectRef{name: v.Secret.SecretName, volume: v.Name}, v.blame(field))
	if err != nil {
		return "", err
	}
	var tables []seed
	for _, name := range wanted {
		i := slices.IndexFunc(files, func(f seed) bool { return f.name == name })
		if i < 0 {
			return "", v.fault(field, fmt.Sprintf("Required value: Secret %q has no key %s", v.Secret.SecretName, name), "add the table under that key", domain.ErrInvalid)
		}
		tables = append(tables, files[i])
	}
	if err := writeDir(dir, tables); err != nil {
		return "", v.fault(field, "cannot write the ACPI tables", "check the space on the node", err)
	}
	return w.publishedTables(ctx, v, dir, wanted)
}

// publishedTables makes the tables in a directory visible to the hypervisor, and returns the path
// that it has for the directory.
func (w generated) publishedTables(ctx context.Context, v volume, dir string, names []string) (string, error) {
	visible := dir
	for _, name := range names {
		path, err := visibleDir{v.pods, v.dir, v.vmi}.publish(ctx, filepath.Join(dir, name))
		if err != nil {
			return "", v.fault("secret.secretName", "cannot put the ACPI tables into the launcher Pod", "check the space on the node", err)
		}
		visible = filepath.Dir(path)
	}
	return visible, nil
}

// acpiTables returns the files of the volume that the VMI's firmware refers to
// (spec.domain.firmware.acpi).
func (v volume) acpiTables() []string {
	fw := v.vmi.Spec.Domain.Firmware
	if fw == nil || fw.ACPI == nil {
		return nil
	}
	var out []string
	if fw.ACPI.SlicNameRef == v.Name {
		out = append(out, "slic.bin")
	}
	if fw.ACPI.MsdmNameRef == v.Name {
		out = append(out, "msdm.bin")
	}
	return out
}

// writeDir makes a directory with files, whole or not at all. Their names have been
// checked.
func writeDir(dir string, files []seed) error {
	tmp := dir + ".new"
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o700)); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(tmp, f.name), f.data, 0o600); err != nil {
			return errors.Join(err, os.RemoveAll(tmp))
		}
	}
	return os.Rename(tmp, dir)
}

// ignition writes the data of the annotation kubevirt.io/ignitiondata to a file, once; empty if
// there is none.
func ignition(vmi *v1.VirtualMachineInstance, dir string) (string, error) {
	data := vmi.Annotations[v1.IgnitionAnnotation]
	if data == "" {
		return "", nil
	}
	path := filepath.Join(dir, "data.ign")
	if exists(path) {
		return path, nil
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(data), 0o600); err != nil {
		return "", fmt.Errorf("workspace: data for Ignition: %w", err)
	}
	return path, os.Rename(tmp, path)
}
