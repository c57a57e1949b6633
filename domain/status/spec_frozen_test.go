// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// While the file systems are frozen the agent has few commands enabled and reports nothing
// else. Its last report has to survive every backup.
func TestReflect_FrozenFileSystems(t *testing.T) {
	live := plainLive(true)
	live.Devices.Interfaces = []libvirtxml.DomainInterface{{
		Alias: xmlspec.Alias("default"), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:01"},
	}}
	o := seen(domain.StatusRunning, "", live)
	o.Guest = &guestagent.Info{
		AgentVersion: "8.0.0", Commands: basicCommands, OS: guestagent.OS{Name: "Debian"},
		Interfaces: []guestagent.Interface{
			{Name: "eth0", MAC: "02:00:00:00:00:01", IPs: []string{"192.0.2.7"}},
			{Name: "docker0", MAC: "02:00:00:00:00:02", IPs: []string{"172.17.0.1"}},
		},
	}
	before := Reflect(domainfixture.Small(), o, statusNow)
	if len(before.Status.Interfaces) != 2 || before.Status.Interfaces[0].IP != "192.0.2.7" {
		t.Fatalf("interfaces %+v", before.Status.Interfaces)
	}
	o.Guest = &guestagent.Info{AgentVersion: "8.0.0", Commands: []string{"guest-fsfreeze-status", "guest-fsfreeze-thaw", "guest-ping"}, Frozen: true}
	frozen := Reflect(before, o, statusNow)
	want := before.DeepCopy()
	want.Status.FSFreezeStatus = frozenStatus
	if diff := cmp.Diff(want.Status, frozen.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if got := saying(frozen, v1.VirtualMachineInstanceUnsupportedAgent); got != "" {
		t.Errorf("the agent is said to be unfit: %s", got)
	}
}
