// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// Services do not change the domain if the node provides them.
func TestSpecServices(t *testing.T) {
	type vmiT = v1.VirtualMachineInstance
	key := func(m v1.SSHPublicKeyAccessCredentialPropagationMethod) func(*vmiT) {
		return func(v *vmiT) {
			v.Spec.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{PropagationMethod: m}}}
		}
	}
	type agent = v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation
	type methods = v1.SSHPublicKeyAccessCredentialPropagationMethod
	noCloud := key(methods{NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}})
	drive := key(methods{ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}})
	password := func(m v1.UserPasswordAccessCredentialPropagationMethod) func(*vmiT) {
		return func(v *vmiT) {
			v.Spec.AccessCredentials = []v1.AccessCredential{{UserPassword: &v1.UserPasswordAccessCredential{PropagationMethod: m}}}
		}
	}
	hooked := func(v *vmiT) {
		v.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"image": "hook"}]`}
	}
	const ssh, pass = "spec.accessCredentials[0].sshPublicKey.propagationMethod", "spec.accessCredentials[0].userPassword.propagationMethod"
	for name, row := range map[string]struct {
		change func(*vmiT)
		served Services
		field  string
		err    error
	}{
		"keys by NoCloud":             {change: noCloud, served: Services{CloudInitKeys: true}},
		"keys by NoCloud, not served": {change: noCloud, field: ssh + ".noCloud", err: domain.ErrUnsupported},
		"keys by config drive":        {change: drive, served: Services{CloudInitKeys: true}, field: ssh + ".configDrive", err: domain.ErrInvalid}, // no such volume
		"keys by agent":               {change: key(methods{QemuGuestAgent: &agent{Users: []string{"root"}}}), served: Services{AgentCredentials: true}},
		"keys by agent, not served":   {change: key(methods{QemuGuestAgent: &agent{Users: []string{"root"}}}), field: ssh + ".qemuGuestAgent", err: domain.ErrUnsupported},
		"keys by agent, for nobody":   {change: key(methods{QemuGuestAgent: &agent{}}), served: Services{AgentCredentials: true}, field: ssh + ".qemuGuestAgent.users", err: domain.ErrInvalid},
		"keys by no way":              {change: key(methods{}), field: ssh, err: domain.ErrInvalid},
		"passwords by agent":          {change: password(v1.UserPasswordAccessCredentialPropagationMethod{QemuGuestAgent: &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}}), served: Services{AgentCredentials: true}},
		"passwords, not served":       {change: password(v1.UserPasswordAccessCredentialPropagationMethod{QemuGuestAgent: &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}}), field: pass + ".qemuGuestAgent", err: domain.ErrUnsupported},
		"passwords by no way":         {change: password(v1.UserPasswordAccessCredentialPropagationMethod{}), field: pass, err: domain.ErrInvalid},
		"neither key nor password":    {change: func(v *vmiT) { v.Spec.AccessCredentials = make([]v1.AccessCredential, 1) }, field: "spec.accessCredentials[0]", err: domain.ErrInvalid},
		"both key and password": {change: func(v *vmiT) {
			v.Spec.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{}, UserPassword: &v1.UserPasswordAccessCredential{}}}
		}, field: "spec.accessCredentials[0]", err: domain.ErrInvalid},
		"hooks":             {change: hooked, served: Services{Hooks: true}},
		"hooks, not called": {change: hooked, field: "metadata.annotations[hooks.kubevirt.io/hookSidecars]", err: domain.ErrUnsupported},
		"claims of resources that no device names": {change: func(v *vmiT) {
			v.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{{Name: "c"}}
		}},
		"utility volumes": {change: func(v *vmiT) {
			v.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "backup"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			before, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			row.change(vmi)
			f.Services = row.served
			after, err := Convert(vmi, f)
			if row.err != nil {
				wantError(t, err, row.field, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(domainfixture.Marshal(t, before), domainfixture.Marshal(t, after)); diff != "" {
				t.Errorf("the domain differs:\n%s", diff)
			}
		})
	}
}
