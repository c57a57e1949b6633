// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	probeCommand = "virt-probe"
	// The delay between the start of the container and a reachable guest.
	guestStartSeconds = 10
)

// probes converts the VMI's probes to probes of the compute container that query the guest.
func probes(d *render.Draft) error {
	if p := d.VMI().Spec.ReadinessProbe; p != nil {
		probe := renderProbe(d.VMI(), p)
		d.From("spec.readinessProbe").Container(computeContainer).Set("readinessProbe", func(c *corev1.Container) { c.ReadinessProbe = probe })
	}
	if p := d.VMI().Spec.LivenessProbe; p != nil {
		probe := renderProbe(d.VMI(), p)
		d.From("spec.livenessProbe").Container(computeContainer).Set("livenessProbe", func(c *corev1.Container) { c.LivenessProbe = probe })
	}
	return nil
}

func renderProbe(vmi *v1.VirtualMachineInstance, p *v1.Probe) *corev1.Probe {
	out := &corev1.Probe{
		InitialDelaySeconds: p.InitialDelaySeconds + guestStartSeconds,
		TimeoutSeconds:      atLeastOne(p.TimeoutSeconds, 1),
		PeriodSeconds:       atLeastOne(p.PeriodSeconds, 10),
		SuccessThreshold:    atLeastOne(p.SuccessThreshold, 1),
		FailureThreshold:    atLeastOne(p.FailureThreshold, 3),
	}
	ask := []string{
		probeCommand, "--domainName", vmi.Namespace + "_" + vmi.Name,
		"--timeoutSeconds", strconv.Itoa(int(out.TimeoutSeconds)),
	}
	switch {
	case p.Exec != nil:
		command := p.Exec.Command
		if len(command) > 0 && command[0] != probeCommand {
			command = append(append(ask, "--command", command[0], "--"), command[1:]...)
			out.TimeoutSeconds++ // the kubelet waits a little longer than the command inside
		}
		out.Exec = &corev1.ExecAction{Command: command}
	case p.GuestAgentPing != nil:
		out.Exec = &corev1.ExecAction{Command: append(ask, "--guestAgentPing")}
		out.TimeoutSeconds++
	case p.HTTPGet != nil:
		out.HTTPGet = p.HTTPGet
	case p.TCPSocket != nil:
		out.TCPSocket = p.TCPSocket
	}
	return out
}

func atLeastOne(n, fallback int32) int32 {
	if n < 1 {
		return fallback
	}
	return n
}
