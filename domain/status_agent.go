// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// ReasonMissingCommands is the reason of the condition AgentVersionNotSupported:
// the agent lacks commands that are needed. KubeVirt puts a sentence there; ours
// is in the message, and names the commands.
const ReasonMissingCommands = "MissingCommands"

// agentStatus reflects whether the guest's agent is there and what it tells. An
// agent that does not answer leaves all it told before, and holds up nothing else.
func agentStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	connected := AgentConnected(o.live())
	if connected {
		setTrue(vmi, v1.VirtualMachineInstanceAgentConnected, "", "", now)
	} else {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceAgentConnected)
	}
	supportedAgent(vmi, o.told(), connected, now)
	credentialStatus(vmi, o.Credentials, now)
	if g := o.told(); g != nil && g.OS.Name != "" {
		vmi.Status.GuestOSInfo = v1.VirtualMachineInstanceGuestOSInfo{
			Name: g.OS.Name, ID: g.OS.ID, PrettyName: g.OS.PrettyName, Version: g.OS.Version, VersionID: g.OS.VersionID,
			KernelRelease: g.OS.KernelRelease, KernelVersion: g.OS.KernelVersion, Machine: g.OS.Machine,
		}
	}
	vmi.Status.FSFreezeStatus = freezeStatus(vmi.Status.FSFreezeStatus, o)
}

// frozenStatus is what fsFreezeStatus says of frozen file systems (KubeVirt's word).
const frozenStatus = "frozen"

// freezeStatus tells frozen file systems; thawed ones are told by nothing. A freeze
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

// credentialStatus mirrors whether access credentials have reached the guest.
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

// Commands of the guest agent that are needed, as KubeVirt lists them.
var (
	basicCommands = []string{
		"guest-ping", "guest-get-time", "guest-info", "guest-shutdown", "guest-network-get-interfaces", "guest-get-fsinfo",
		"guest-get-host-name", "guest-get-users", "guest-get-timezone", "guest-get-osinfo",
	}
	sshCommands    = []string{"guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys", "guest-ssh-remove-authorized-keys"}
	oldSSHCommands = []string{"guest-exec", "guest-exec-status", "guest-file-open", "guest-file-close", "guest-file-read", "guest-file-write"}
	passwdCommands = []string{"guest-set-user-password"}
)

// oldestAgent is the oldest major version of an agent that is taken for complete
// where it does not list its commands.
const oldestAgent = 2

// supportedAgent mirrors whether the agent can do what is asked of it.
func supportedAgent(vmi *v1.VirtualMachineInstance, g *GuestInfo, connected bool, now time.Time) {
	if connected && (g == nil || g.AgentVersion == "" && len(g.Commands) == 0) {
		return // it has not told yet
	}
	why := ""
	if connected {
		why = lacking(vmi, g)
	}
	if why == "" {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceUnsupportedAgent)
		return
	}
	setTrue(vmi, v1.VirtualMachineInstanceUnsupportedAgent, ReasonMissingCommands, why, now)
}

// lacking tells what the agent lacks, empty if nothing.
func lacking(vmi *v1.VirtualMachineInstance, g *GuestInfo) string {
	if len(g.Commands) == 0 {
		major, _, _ := strings.Cut(g.AgentVersion, ".")
		if n, err := strconv.Atoi(major); err != nil || n < oldestAgent {
			return fmt.Sprintf("the guest agent has version %q and does not list its commands; use version %d or later", g.AgentVersion, oldestAgent)
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
	return "the guest agent has not enabled " + strings.Join(missing, ", ") + "; update it or enable them"
}

// missingFrom lists which of the wanted commands are not among those there are.
func missingFrom(have, want []string) []string {
	var out []string
	for _, c := range want {
		if !slices.Contains(have, c) {
			out = append(out, c)
		}
	}
	return out
}

// credentialsByAgent tells which kinds of credentials the agent has to bring in.
func credentialsByAgent(vmi *v1.VirtualMachineInstance) (ssh, password bool) {
	for _, c := range vmi.Spec.AccessCredentials {
		ssh = ssh || c.SSHPublicKey != nil && c.SSHPublicKey.PropagationMethod.QemuGuestAgent != nil
		password = password || c.UserPassword != nil && c.UserPassword.PropagationMethod.QemuGuestAgent != nil
	}
	return ssh, password
}
