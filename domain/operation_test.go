// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

func TestOperationValidate_Missing(t *testing.T) {
	disk := &libvirtxml.DomainDisk{}
	for name, tc := range map[string]struct {
		op    domain.Operation
		lacks string
	}{
		"start":                      {domain.Operation{Verb: domain.Start, Definition: &libvirtxml.Domain{Name: "d"}}, ""},
		"start of nothing":           {domain.Operation{Verb: domain.Start}, "a definition"},
		"start of another":           {domain.Operation{Verb: domain.Start, Definition: &libvirtxml.Domain{Name: "x"}}, "a definition of that name"},
		"shutdown":                   {domain.Operation{Verb: domain.Shutdown}, ""},
		"destroy":                    {domain.Operation{Verb: domain.Destroy}, ""},
		"undefine":                   {domain.Operation{Verb: domain.Undefine}, ""},
		"suspend":                    {domain.Operation{Verb: domain.Suspend}, ""},
		"resume":                     {domain.Operation{Verb: domain.Resume}, ""},
		"metadata":                   {domain.Operation{Verb: domain.SetMetadata}, ""},
		"reset":                      {domain.Operation{Verb: domain.Reset}, ""},
		"reboot":                     {domain.Operation{Verb: domain.Reboot, Agent: true}, ""},
		"attach":                     {domain.Operation{Verb: domain.AttachDevice, Device: disk}, ""},
		"attach of nothing":          {domain.Operation{Verb: domain.AttachDevice}, "a device"},
		"detach of nothing":          {domain.Operation{Verb: domain.DetachDevice}, "a device"},
		"update of nothing":          {domain.Operation{Verb: domain.UpdateDevice}, "a device"},
		"vCPUs":                      {domain.Operation{Verb: domain.SetVCPUs, VCPUs: 1}, ""},
		"no vCPUs":                   {domain.Operation{Verb: domain.SetVCPUs}, "a number of CPUs"},
		"resize to the device":       {domain.Operation{Verb: domain.ResizeDisk, Disk: "ua-root"}, ""},
		"resize of nothing":          {domain.Operation{Verb: domain.ResizeDisk, Bytes: 1}, "a disk"},
		"a verb that does not exist": {domain.Operation{Verb: "Dance"}, "unknown verb"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.op.Domain = "d"
			err := tc.op.Validate()
			if tc.lacks == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), tc.lacks) {
				t.Errorf("error is %v, want one about %s", err, tc.lacks)
			}
			tc.op.Domain = ""
			if err := tc.op.Validate(); !errors.Is(err, domain.ErrInvalid) {
				t.Errorf("without a domain: %v", err)
			}
		})
	}
}
