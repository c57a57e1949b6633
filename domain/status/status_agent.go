// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// reasonMissingCommands is the reason of the condition AgentVersionNotSupported: the agent
// lacks required commands. KubeVirt's reason is a sentence; here that is the message, which
// names the commands.
const reasonMissingCommands = "MissingCommands"

// agentStatus reflects whether the guest agent is connected and what it reports. The last
// report of an unresponsive agent stays, and the rest of the status does not wait for it.
func agentStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	connected := AgentConnected(o.live())
	if connected {
		setTrue(vmi, v1.VirtualMachineInstanceAgentConnected, "", "", now)
	} else {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceAgentConnected)
	}
	supportedAgent(vmi, o.reported(), connected, now)
	credentialStatus(vmi, o.Credentials, now)
	if g := o.reported(); g != nil && g.OS.Name != "" {
		vmi.Status.GuestOSInfo = v1.VirtualMachineInstanceGuestOSInfo{
			Name: g.OS.Name, ID: g.OS.ID, PrettyName: g.OS.PrettyName, Version: g.OS.Version, VersionID: g.OS.VersionID,
			KernelRelease: g.OS.KernelRelease, KernelVersion: g.OS.KernelVersion, Machine: g.OS.Machine,
		}
	}
	vmi.Status.FSFreezeStatus = freezeStatus(vmi.Status.FSFreezeStatus, o)
}

// frozenStatus is KubeVirt's value of fsFreezeStatus for frozen file systems.
const frozenStatus = "frozen"

// freezeStatus returns the value of fsFreezeStatus, empty for thawed file systems. A freeze
// with a time limit is known without the agent.
func freezeStatus(was string, o Observation) string {
	switch {
	case o.State.Metadata.ThawAt != nil, o.Guest != nil && o.Guest.Frozen:
		return frozenStatus
	case o.Guest == nil:
		return was
	}
	return ""
}

// credentialStatus reflects whether access credentials have reached the guest.
func credentialStatus(vmi *v1.VirtualMachineInstance, c *CredentialSync, now time.Time) {
	if c == nil {
		return
	}
	cond := v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceAccessCredentialsSynchronized, Status: corev1.ConditionTrue, Message: c.Message,
	}
	if !c.Done {
		cond.Status = corev1.ConditionFalse
	}
	vmistatus.SetCondition(vmi, cond, now)
}

// Required commands of the guest agent, as in KubeVirt.
var (
	basicCommands = []string{
		"guest-ping", "guest-get-time", "guest-info", "guest-shutdown", "guest-network-get-interfaces", "guest-get-fsinfo",
		"guest-get-host-name", "guest-get-users", "guest-get-timezone", "guest-get-osinfo",
	}
	sshCommands    = []string{"guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys", "guest-ssh-remove-authorized-keys"}
	oldSSHCommands = []string{"guest-exec", "guest-exec-status", "guest-file-open", "guest-file-close", "guest-file-read", "guest-file-write"}
	passwdCommands = []string{"guest-set-user-password"}
)

// oldestAgent is the oldest supported major version of an agent that does not list its
// commands.
const oldestAgent = 2

// supportedAgent reflects whether the agent supports the required commands.
func supportedAgent(vmi *v1.VirtualMachineInstance, g *guestagent.Info, connected bool, now time.Time) {
	if connected && (g == nil || g.AgentVersion == "" && len(g.Commands) == 0) {
		return // there is no report yet
	}
	why := ""
	if connected {
		why = unsupportedAgent(vmi, g)
	}
	if why == "" {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceUnsupportedAgent)
		return
	}
	setTrue(vmi, v1.VirtualMachineInstanceUnsupportedAgent, reasonMissingCommands, why, now)
}

// unsupportedAgent returns why the agent is not supported; empty if it is.
func unsupportedAgent(vmi *v1.VirtualMachineInstance, g *guestagent.Info) string {
	if len(g.Commands) == 0 {
		major, _, _ := strings.Cut(g.AgentVersion, ".")
		if n, err := strconv.Atoi(major); err != nil || n < oldestAgent {
			return fmt.Sprintf("guest agent version %q is not supported: it does not list its commands; install version %d or later", g.AgentVersion, oldestAgent)
		}
		return ""
	}
	missing := missingFrom(g.Commands, basicCommands)
	ssh, password := credentialsByAgent(vmi)
	if ssh && len(missingFrom(g.Commands, oldSSHCommands)) > 0 {
		missing = append(missing, missingFrom(g.Commands, sshCommands)...)
	}
	if password {
		missing = append(missing, missingFrom(g.Commands, passwdCommands)...)
	}
	if len(missing) == 0 {
		return ""
	}
	return "guest agent does not support required commands: " + strings.Join(missing, ", ") + "; update the agent or enable them"
}

// missingFrom returns the elements of want that have lacks.
func missingFrom(have, want []string) []string {
	var out []string
	for _, c := range want {
		if !slices.Contains(have, c) {
			out = append(out, c)
		}
	}
	return out
}

// credentialsByAgent reports which kinds of credentials are propagated by the agent.
func credentialsByAgent(vmi *v1.VirtualMachineInstance) (ssh, password bool) {
	for _, c := range vmi.Spec.AccessCredentials {
		ssh = ssh || c.SSHPublicKey != nil && c.SSHPublicKey.PropagationMethod.QemuGuestAgent != nil
		password = password || c.UserPassword != nil && c.UserPassword.PropagationMethod.QemuGuestAgent != nil
	}
	return ssh, password
}

// CredentialSync is the state of the propagation of access credentials to a guest.
type CredentialSync struct {
	// Done says that all of them have reached the guest.
	Done bool
	// Message is why they have not; may be empty.
	Message string
}
