// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path/filepath"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// commandLine adds the arguments of QEMU that libvirt has no element for: data for
// Ignition, and the debug port of the firmware. Only paths of the node reach them.
func commandLine(c *Conversion) error {
	ignition, err := ignitionArguments(c)
	if err != nil {
		return err
	}
	log, err := firmwareLogArguments(c)
	if err != nil {
		return err
	}
	args := append(ignition, log...)
	if len(args) == 0 {
		return nil
	}
	out := &libvirtxml.DomainQEMUCommandline{}
	for _, a := range args {
		out.Args = append(out.Args, libvirtxml.DomainQEMUCommandlineArg{Value: a})
	}
	c.Domain.QEMUCommandline = out
	return nil
}

// ignitionArguments hand the file with the data of the annotation
// kubevirt.io/ignitiondata to the guest. As with KubeVirt, only what speaks of
// ignition is taken for its data.
func ignitionArguments(c *Conversion) ([]string, error) {
	if !strings.Contains(c.VMI.Annotations[v1.IgnitionAnnotation], "ignition") {
		return nil, nil
	}
	field := fmt.Sprintf("metadata.annotations[%s]", v1.IgnitionAnnotation)
	switch {
	case c.arch.name == specS390X:
		return nil, c.Invalid(field, "guests of s390x have no device that it could be read from", "use cloud-init")
	case c.Facts.Ignition == "":
		return nil, &Error{Object: c.object(), Field: field, Reason: "the node has no file with these data",
			Remedy: "let it run on a node that writes them", Err: ErrNotFound}
	case !filepath.IsAbs(c.Facts.Ignition):
		return nil, &Error{Object: c.object(), Field: field, Reason: fmt.Sprintf("the node names no absolute path but %q", c.Facts.Ignition),
			Remedy: "correct the node's configuration", Err: ErrInvalid}
	}
	return []string{"-fw_cfg", "name=opt/com.coreos/config,file=" + optionValue(c.Facts.Ignition)}, nil
}

// firmwareLogArguments let the firmware of amd64 guests write to a file what it
// says on its debug port.
func firmwareLogArguments(c *Conversion) ([]string, error) {
	if !c.Facts.Cluster.FirmwareLog || c.arch.name != specX86 {
		return nil, nil
	}
	path, err := c.filePath(FirmwareLog)
	if err != nil {
		return nil, err
	}
	return []string{
		"-chardev", "file,id=firmwarelog,path=" + optionValue(path),
		"-device", "isa-debugcon,iobase=0x402,chardev=firmwarelog",
	}, nil
}

// optionValue quotes a value within an option of QEMU, where a comma ends it.
func optionValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }
