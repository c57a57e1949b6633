// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/vmi/admit"
)

// TestValidate_AcceptedConverts converts accepted VMIs to a domain, on a node with all their devices, if they convert with
// the defaults of the offline tools.
func TestValidate_AcceptedConverts(t *testing.T) {
	converted := 0
	for _, s := range corpus(t) {
		t.Run(s.name, func(t *testing.T) {
			convert := func(vmi *v1.VirtualMachineInstance) error {
				facts := assume.Facts(vmi)
				facts.Cluster, facts.SMBIOS = convert.ClusterFrom(s.cluster.KubeVirt)
				_, err := convert.Convert(vmi, facts)
				return err
			}
			c := s.config()
			c.Request.Privileged = true
			vmi := s.cluster.VMI.DeepCopy()
			admit.Default(vmi, c)
			accepted := len(admit.Validate(vmi, c)) == 0
			err := convert(vmi)
			usual := s.cluster.VMI.DeepCopy()
			usual.Status.Phase = ""
			usual, defaultErr := offline.Default(usual, s.cluster.KubeVirt)
			if defaultErr != nil {
				t.Fatal(defaultErr)
			}
			usually := convert(usual)
			if err == nil {
				converted++
			}
			if err != nil && (accepted || usually == nil) {
				t.Errorf("accepted %t, but not converted: %v; with the defaults of the offline tools: %v", accepted, err, usually)
			}
		})
	}
	if converted < 60 {
		t.Errorf("only %d guests were converted", converted)
	}
}
