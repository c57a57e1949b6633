// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/admit"
)

// judge checks invariants of every VMI: defaulting is idempotent, a valid VMI stays valid with defaults, and each error has
// a remedy.
func judge(t *testing.T, vmi *v1.VirtualMachineInstance, c admit.Config) {
	t.Helper()
	before := admit.Validate(vmi, c)
	for _, err := range before {
		complete(t, err)
	}
	once := vmi.DeepCopy()
	admit.Default(once, c)
	twice := once.DeepCopy()
	admit.Default(twice, c)
	if diff := cmp.Diff(once, twice, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("defaults of defaults differ:\n%s", diff)
	}
	if after := admit.Validate(once, c); len(before) == 0 && len(after) > 0 {
		t.Errorf("defaults made the VMI invalid: %v", after)
	}
	if errs := admit.ValidateUpdate(vmi, once, c); len(errs) == 0 && !c.Request.Privileged && !cmp.Equal(vmi.Spec, once.Spec, cmpopts.EquateEmpty()) {
		t.Error("a user's change of the spec was accepted")
	}
	admit.DefaultUpdate(vmi, once, c)
}

// FuzzAnyJSON passes any JSON that decodes to a VMI to all functions.
func FuzzAnyJSON(f *testing.F) {
	for _, s := range corpus(f) {
		text, err := json.Marshal(s.cluster.VMI)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, false, "")
		f.Add(text, true, "masquerade")
	}
	for _, text := range []string{`{}`, `null`, `{"spec":{"volumes":[{}],"networks":[{}],"domain":{"cpu":{"sockets":4294967295,"cores":4294967295}}}}`} {
		f.Add([]byte(text), false, "slirp")
	}
	f.Fuzz(func(t *testing.T, text []byte, privileged bool, binding string) {
		var vmi v1.VirtualMachineInstance
		if json.Unmarshal(text, &vmi) != nil {
			return
		}
		c := admit.Config{NetworkInterface: v1.NetworkInterfaceType(binding), FeatureGates: []string{"HostDisk"},
			Request: admit.Request{Now: metav1.Unix(1, 0), FirmwareUUID: "01234567-89ab-cdef-0123-456789abcdef", Privileged: privileged}}
		judge(t, &vmi, c)
	})
}

func TestCorpus_Invariants(t *testing.T) {
	for _, s := range corpus(t) {
		t.Run(s.name, func(t *testing.T) { judge(t, s.cluster.VMI, s.config()) })
	}
}
