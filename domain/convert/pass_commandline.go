// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"path/filepath"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// commandLine adds QEMU arguments without a libvirt element: Ignition data and the debug port of
// the firmware. They contain no user input other than paths of the node.
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

// ignitionArguments pass the file with the data of the annotation kubevirt.io/ignitiondata to the
// guest. As in KubeVirt, data without the word ignition is ignored.
func ignitionArguments(c *Conversion) ([]string, error) {
	if !strings.Contains(c.VMI.Annotations[v1.IgnitionAnnotation], "ignition") {
		return nil, nil
	}
	field := fmt.Sprintf("metadata.annotations[%s]", v1.IgnitionAnnotation)
	switch {
	case c.arch.name == specS390X:
		return nil, c.Invalid(field, "Ignition is not supported on s390x", "use cloud-init")
	case c.Facts.Ignition == "":
		return nil, &Error{Object: c.object(), Field: field, Reason: "the node has no Ignition file for this VMI",
			Remedy: "use a node that writes Ignition files", Err: domain.ErrNotFound}
	case !filepath.IsAbs(c.Facts.Ignition):
		return nil, &Error{Object: c.object(), Field: field, Reason: fmt.Sprintf("the node's path of the Ignition file is not absolute: %q", c.Facts.Ignition),
			Remedy: "correct the node's configuration", Err: domain.ErrInvalid}
	}
	return []string{"-fw_cfg", "name=opt/com.coreos/config,file=" + optionValue(c.Facts.Ignition)}, nil
}

// firmwareLogArguments write the output of the firmware's debug port to a file, for amd64 guests.
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

// optionValue escapes a value of a QEMU option, where a comma separates values.
func optionValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }
