// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func security(s v1.LaunchSecurity) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.LaunchSecurity = &s }
}

func hostDevice(name, resource string) change {
	return devices(func(d *v1.Devices) {
		d.HostDevices = append(d.HostDevices, v1.HostDevice{Name: name, DeviceName: resource})
	})
}

func claimedGPU(name, claim, request string) change {
	return devices(func(d *v1.Devices) {
		d.GPUs = append(d.GPUs, v1.GPU{Name: name, ClaimRequest: &v1.ClaimRequest{ClaimName: claim, RequestName: request}})
	})
}

func claimedDevice(name, claim, request string) change {
	return devices(func(d *v1.Devices) {
		d.HostDevices = append(d.HostDevices, v1.HostDevice{Name: name, ClaimRequest: &v1.ClaimRequest{ClaimName: claim, RequestName: request}})
	})
}

// resourceClaim adds a claim of the template of that name.
func resourceClaim(name string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ResourceClaims = append(vmi.Spec.ResourceClaims, v1.VirtualMachineInstanceResourceClaim{Name: name, ResourceClaimTemplateName: &name})
	}
}

func lunReservation(vmi *v1.VirtualMachineInstance) {
	volume("lun", pvc("lun"))(vmi)
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
		Name: "lun", DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{Reservation: true}},
	})
}

func emulated(in *template.Input) { in.Config.AllowEmulation = true }

func hypervisor(name string) func(*template.Input) {
	return func(in *template.Input) {
		in.Config.Hypervisor = name
		gates("ConfigurableHypervisor")(in)
	}
}

// deviceCounts returns the devices among resources, ordered by name.
func deviceCounts(l corev1.ResourceList) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if !strings.Contains(string(name), "/") {
			continue
		}
		q := l[name]
		all = append(all, strings.TrimPrefix(string(name), "devices.kubevirt.io/")+"="+q.String())
	}
	return strings.Join(all, " ")
}

func TestSpecDevices(t *testing.T) {
	no, yes := false, true
	e1000 := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.Interfaces[0].Model = "e1000" }
	for name, tc := range map[string]struct {
		vmi              change
		config           func(*template.Input)
		limits, requests string
	}{
		"50: emulation":                   {virtio, emulated, "tun=1", ""},
		"57: Pod network by default":      {changes(), nil, "kvm=1 tun=1", ""},
		"57: Pod network asked for":       {devices(func(d *v1.Devices) { d.AutoattachPodInterface = &yes }), nil, "kvm=1 tun=1", ""},
		"57: no network":                  {devices(func(d *v1.Devices) { d.AutoattachPodInterface = &no }), nil, "kvm=1", ""},
		"57: interfaces instead":          {changes(virtio, devices(func(d *v1.Devices) { d.AutoattachPodInterface = &no })), nil, "kvm=1 tun=1 vhost-net=1", ""},
		"an interface without virtio":     {changes(virtio, e1000), nil, "kvm=1 tun=1", ""},
		"58: vsock":                       {devices(func(d *v1.Devices) { d.AutoattachVSOCK = &yes }), nil, "kvm=1 tun=1 vhost-vsock=1", ""},
		"58: vsock of an emulated guest":  {devices(func(d *v1.Devices) { d.AutoattachVSOCK = &yes }), emulated, "tun=1 vhost-vsock=1", ""},
		"90: IOMMUFD":                     {changes(), gates("IOMMUFD"), "iommufd=1 kvm=1 tun=1", "iommufd=1"},
		"hyperv-direct":                   {changes(), hypervisor("hyperv-direct"), "mshv=1 tun=1", ""},
		"hyperv-direct, gate off":         {changes(), func(in *template.Input) { in.Config.Hypervisor = "hyperv-direct" }, "kvm=1 tun=1", ""},
		"an unknown hypervisor is kvm":    {changes(), hypervisor("other"), "kvm=1 tun=1", ""},
		"SEV":                             {security(v1.LaunchSecurity{SEV: &v1.SEV{}}), nil, "kvm=1 sev=1 tun=1", "sev=1"},
		"SEV-SNP":                         {security(v1.LaunchSecurity{SNP: &v1.SEVSNP{}}), nil, "kvm=1 sev=1 tun=1", "sev=1"},
		"TDX":                             {security(v1.LaunchSecurity{TDX: &v1.TDX{}}), nil, "kvm=1 tdx=1 tun=1", "tdx=1"},
		"secure execution has no device":  {security(v1.LaunchSecurity{}), nil, "kvm=1 tun=1", ""},
		"79: one GPU":                     {gpus("vendor.com/gpu_name"), nil, "kvm=1 tun=1 vendor.com/gpu_name=1", "vendor.com/gpu_name=1"},
		"79: two of one name":             {gpus("vendor.com/gpu_name", "vendor.com/gpu_name"), nil, "kvm=1 tun=1 vendor.com/gpu_name=2", "vendor.com/gpu_name=2"},
		"80: host device":                 {hostDevice("h", "vendor.com/dev_name"), nil, "kvm=1 tun=1 vendor.com/dev_name=1", "vendor.com/dev_name=1"},
		"80: GPU and device of one name":  {changes(gpus("vendor.com/x"), hostDevice("h", "vendor.com/x")), nil, "kvm=1 tun=1 vendor.com/x=2", "vendor.com/x=2"},
		"81: a claim is no device":        {changes(resourceClaim("c"), claimedGPU("g", "c", "r")), nil, "kvm=1 tun=1", ""},
		"a device asked for twice counts": {changes(gpus("x.com/y"), limits("x.com/y", "9")), nil, "kvm=1 tun=1 x.com/y=1", "x.com/y=1"},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(tc.vmi))
			if tc.config != nil {
				tc.config(&in)
			}
			got := container(t, presetLauncher(t, in.VMI, func(i *template.Input) { *i = in }), "compute")
			if diff := cmp.Diff([]string{tc.limits, tc.requests}, []string{deviceCounts(got.Resources.Limits), deviceCounts(got.Resources.Requests)}); diff != "" {
				t.Error(diff)
			}
			emulation := slices.Contains(got.Args, "--allow-emulation")
			if emulation != in.Config.AllowEmulation {
				t.Errorf("50: emulation is allowed: %v", emulation)
			}
		})
	}
}

func TestSpecDevices_OverheadOnce(t *testing.T) {
	for name, vmi := range map[string]change{
		"79: one GPU":         gpus("vendor.com/gpu_name"),
		"79: two GPUs":        gpus("vendor.com/gpu_name", "vendor.com/gpu_name"),
		"80: host device":     hostDevice("h", "vendor.com/dev_name"),
		"81: GPU by claim":    changes(resourceClaim("c"), claimedGPU("g", "c", "r")),
		"81: device by claim": changes(resourceClaim("c"), claimedDevice("h", "c", "r")),
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(guest("1Gi"), vmi))
			if got := pod.Annotations[v1.MemoryOverheadAnnotationBytes]; got != "1375731712" {
				t.Errorf("overhead %s, want 288Mi and 1Gi", got)
			}
			for _, v := range pod.Spec.Volumes {
				if v.HostPath != nil {
					t.Errorf("79: folder %s of the host is mounted", v.HostPath.Path)
				}
			}
		})
	}
}

func TestSpecProtection_Overhead(t *testing.T) {
	for name, tc := range map[string]struct {
		security v1.LaunchSecurity
		want     string
	}{
		"SEV": {v1.LaunchSecurity{SEV: &v1.SEV{}}, "570425344"}, "SEV-SNP": {v1.LaunchSecurity{SNP: &v1.SEVSNP{}}, "570425344"},
		"TDX": {v1.LaunchSecurity{TDX: &v1.TDX{}}, "301989888"}, "secure execution": {v1.LaunchSecurity{}, "301989888"},
	} {
		pod := presetLauncher(t, newVMI(guest("1Gi"), security(tc.security)))
		if got := pod.Annotations[v1.MemoryOverheadAnnotationBytes]; got != tc.want {
			t.Errorf("%s: overhead %s, want %s", name, got, tc.want)
		}
	}
}

func TestSpecClaims(t *testing.T) {
	permitOther := func(in *template.Input) {
		in.Config.PermittedHostDevices = &v1.PermittedHostDevices{PciHostDevices: []v1.PciHostDevice{{ResourceName: "vendor.com/other"}}}
	}
	for name, tc := range map[string]struct {
		vmi    change
		config func(*template.Input)
		used   string // by the compute container
		pod    string
	}{
		"46: a claim nobody uses": {resourceClaim("net-claim"), nil, "", "net-claim"},
		"81: GPU with a list of permitted devices": {changes(resourceClaim("c"), claimedGPU("g", "c", "r")), permitOther,
			"c/r", "c"},
		"82: two requests of one claim": {changes(resourceClaim("c"), claimedGPU("g", "c", "r1"), claimedGPU("h", "c", "r2")), nil, "c/r1 c/r2", "c"},
		"82: one request of two devices is asked for once": {changes(resourceClaim("c"), claimedGPU("g", "c", "r"), claimedDevice("h", "c", "r")), nil,
			"c/r", "c"},
		"82: GPUs before other devices": {changes(resourceClaim("c"), resourceClaim("b"), claimedDevice("h", "c", "r"), claimedGPU("g", "b", "r")), nil,
			"b/r c/r", "c b"},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(tc.vmi))
			if tc.config != nil {
				tc.config(&in)
			}
			pod := presetLauncher(t, in.VMI, func(i *template.Input) { *i = in })
			var used, all []string
			for _, c := range container(t, pod, "compute").Resources.Claims {
				used = append(used, c.Name+"/"+c.Request)
			}
			for _, c := range pod.Spec.ResourceClaims {
				if c.ResourceClaimName != nil || *c.ResourceClaimTemplateName != c.Name {
					t.Errorf("claim %+v", c)
				}
				all = append(all, c.Name)
			}
			if diff := cmp.Diff([]string{tc.used, tc.pod}, []string{strings.Join(used, " "), strings.Join(all, " ")}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDevices_Invalid(t *testing.T) {
	permit := func(names ...string) func(*template.Input) {
		return func(in *template.Input) {
			in.Config.PermittedHostDevices = &v1.PermittedHostDevices{}
			for _, name := range names {
				in.Config.PermittedHostDevices.MediatedDevices = append(in.Config.PermittedHostDevices.MediatedDevices, v1.MediatedHostDevice{ResourceName: name})
			}
		}
	}
	name, other := "x", "Not A Name"
	for row, tc := range map[string]struct {
		vmi    change
		config func(*template.Input)
		field  string
		text   string
	}{
		"80: not permitted":         {hostDevice("h", "vendor.com/dev_name"), permit("vendor.com/gpu"), "spec.domain.devices.hostDevices[0].deviceName", "HostDevice vendor.com/dev_name is not permitted"},
		"80: GPU not permitted":     {gpus("vendor.com/gpu", "vendor.com/gpu_name"), permit("vendor.com/gpu"), "spec.domain.devices.gpus[1].deviceName", "GPU vendor.com/gpu_name is not permitted"},
		"neither name nor claim":    {gpus(""), nil, "spec.domain.devices.gpus[0].deviceName", "without a claim"},
		"name and claim":            {changes(resourceClaim("c"), claimedGPU("g", "c", "r"), devices(func(d *v1.Devices) { d.GPUs[0].DeviceName = "x.com/y" })), nil, "spec.domain.devices.gpus[0].deviceName", "with a claim"},
		"claim that is not there":   {claimedDevice("h", "c", "r"), nil, "spec.domain.devices.hostDevices[0].claimName", `resource claim "c" is not defined`},
		"claim without request":     {changes(resourceClaim("c"), claimedDevice("h", "c", "")), nil, "spec.domain.devices.hostDevices[0].requestName", ""},
		"device that is CPU":        {gpus("cpu"), nil, "spec.domain.devices.gpus[0].deviceName", "must be a resource of a device plugin"},
		"device of the launcher":    {hostDevice("h", "devices.kubevirt.io/kvm"), nil, "spec.domain.devices.hostDevices[0].deviceName", "must be a resource of a device plugin"},
		"device of Kubernetes":      {hostDevice("h", "kubernetes.io/x"), nil, "spec.domain.devices.hostDevices[0].deviceName", "must be a resource of a device plugin"},
		"device with a broken name": {hostDevice("h", "x.com/a b"), nil, "spec.domain.devices.hostDevices[0].deviceName", "must be a resource of a device plugin"},
		"claim with a broken name": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{{Name: other, ResourceClaimName: &name}}
		}, nil, "spec.resourceClaims[0].name", other},
		"claim of an impossible name": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{{Name: name, ResourceClaimName: &other}}
		}, nil, "spec.resourceClaims[0].resourceClaimName", other},
		"template of an impossible name": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{{Name: name, ResourceClaimTemplateName: &other}}
		}, nil, "spec.resourceClaims[0].resourceClaimTemplateName", other},
		"SEV and SNP": {security(v1.LaunchSecurity{SEV: &v1.SEV{}, SNP: &v1.SEVSNP{}}), nil, "spec.domain.launchSecurity", "one kind"},
		"SEV and TDX": {security(v1.LaunchSecurity{SEV: &v1.SEV{}, TDX: &v1.TDX{}}), nil, "spec.domain.launchSecurity", "one kind"},
	} {
		t.Run(row, func(t *testing.T) {
			in := presetInput(newVMI(tc.vmi))
			if tc.config != nil {
				tc.config(&in)
			}
			_, err := preset(t).Launcher(in)
			wantError(t, err, tc.field, render.ErrInvalid)
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %q, want it to contain %q", err, tc.text)
			}
		})
	}
}

func TestDevices_NotPermitted(t *testing.T) {
	in := presetInput(newVMI(gpus("vendor.com/gpu_name"), hostDevice("h", "vendor.com/dev_name")))
	in.Config.PermittedHostDevices = &v1.PermittedHostDevices{}
	_, err := preset(t).Launcher(in)
	for _, want := range []string{"GPU vendor.com/gpu_name is not permitted", "HostDevice vendor.com/dev_name is not permitted"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("80: got %v, want it to contain %q", err, want)
		}
	}
}

// A VMI with a LUN reservation gets the reservation helper, whichever stage renders the rest of the reservation.
func TestReservation_Helper(t *testing.T) {
	r, err := preset(t).Remove(template.StageSupported)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := r.Launcher(presetInput(newVMI(lunReservation), claim("lun", corev1.PersistentVolumeBlock, corev1.ReadWriteMany)))
	if err != nil {
		t.Fatal(err)
	}
	got := container(t, pod, "compute").Resources
	want := []string{"kvm=1 pr-helper=1 tun=1", "pr-helper=1"}
	if diff := cmp.Diff(want, []string{deviceCounts(got.Limits), deviceCounts(got.Requests)}); diff != "" {
		t.Error(diff)
	}
}
