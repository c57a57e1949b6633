// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

const hooksField = "metadata.annotations[hooks.kubevirt.io/hookSidecars]"

func hookList(list string) change { return annotate("hooks.kubevirt.io/hookSidecars", list) }

func configMaps(names ...string) func(*template.Input) {
	return func(in *template.Input) {
		in.Facts.ConfigMaps = map[string]bool{}
		for _, name := range names {
			in.Facts.ConfigMaps[name] = true
		}
	}
}

func nonRootGuest(vmi *v1.VirtualMachineInstance) { vmi.Status.RuntimeUser = 107 }

// volumesNamed returns the Pod's volumes of that name; the API server rejects a Pod with two.
func volumesNamed(pod *corev1.Pod, name string) (found []corev1.Volume) {
	for _, v := range pod.Spec.Volumes {
		if v.Name == name {
			found = append(found, v)
		}
	}
	return found
}

func TestSpecSidecarContainer(t *testing.T) {
	user, group, root, yes, no := int64(107), int64(107), int64(0), true, false
	sockets := corev1.VolumeMount{Name: "hook-sidecar-sockets", MountPath: "/var/run/kubevirt-hooks", SubPath: "hook-sidecar-0"}
	asRoot := &corev1.SecurityContext{RunAsUser: &root, RunAsNonRoot: &no}
	asQEMU := &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &group, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	name := corev1.EnvVar{Name: "CONTAINER_NAME", Value: "hook-sidecar-0"}
	dedicated := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU = &v1.CPU{Cores: 2, DedicatedCPUPlacement: true}
	}
	both := corev1.ResourceRequirements{Requests: list("cpu", "200m", "memory", "64M"), Limits: list("cpu", "200m", "memory", "64M")}
	for label, tc := range map[string]struct {
		vmi  []change
		in   []func(*template.Input)
		want corev1.Container
	}{
		"everything": {[]change{hookList(`[{"image":"i","imagePullPolicy":"Never","command":["/c"],"args":["--a","b"]}]`)}, nil,
			corev1.Container{Image: "i", ImagePullPolicy: corev1.PullNever, Command: []string{"/c"}, Args: []string{"--a", "b"},
				Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets}}},
		"default image": {[]change{hookList(`[{}]`)}, []func(*template.Input){func(in *template.Input) { in.Config.SidecarShimImage = "shim" }},
			corev1.Container{Image: "shim", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets}}},
		"26: nonroot": {[]change{hookList(`[{"image":"i"}]`), annotate("kubevirt.io/nonroot", "")}, nil,
			corev1.Container{Image: "i", SecurityContext: asQEMU, VolumeMounts: []corev1.VolumeMount{sockets}, Env: []corev1.EnvVar{
				{Name: "XDG_CACHE_HOME", Value: "/var/run/kubevirt-private"}, {Name: "XDG_CONFIG_HOME", Value: "/var/run/kubevirt-private"},
				{Name: "XDG_RUNTIME_DIR", Value: "/var/run"}, name,
			}}},
		"75: dedicated": {[]change{hookList(`[{"image":"i"}]`), dedicated, guest("1Gi")}, nil,
			corev1.Container{Image: "i", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets}, Resources: both}},
		"guaranteed": {[]change{hookList(`[{"image":"i"}]`), requests("cpu", "1", "memory", "1Gi"), limits("cpu", "1", "memory", "1Gi")}, nil,
			corev1.Container{Image: "i", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets}, Resources: both}},
		"configured": {[]change{hookList(`[{"image":"i"}]`)}, []func(*template.Input){sidecarResources(list("cpu", "5m"), list("memory", "9M"))},
			corev1.Container{Image: "i", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets},
				Resources: corev1.ResourceRequirements{Requests: list("cpu", "5m"), Limits: list("memory", "9M")}}},
		"configured and dedicated": {[]change{hookList(`[{"image":"i"}]`), dedicated, guest("1Gi")}, []func(*template.Input){sidecarResources(list("cpu", "5m"), list("memory", "9M"))},
			corev1.Container{Image: "i", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets},
				Resources: corev1.ResourceRequirements{Requests: list("cpu", "200m", "memory", "9M"), Limits: list("cpu", "200m", "memory", "9M")}}},
		"118: ConfigMap": {[]change{hookList(`[{"image":"i","configMap":{"name":"test-cm","key":"script.sh","hookPath":"/usr/bin/onDefineDomain"}}]`)},
			[]func(*template.Input){configMaps("test-cm")},
			corev1.Container{Image: "i", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{
				sockets, {Name: "test-cm", MountPath: "/usr/bin/onDefineDomain", SubPath: "script.sh"},
			}}},
		"119: claim": {[]change{hookList(`[{"image":"i","pvc":{"name":"test-pvc","volumePath":"/debug","sharedComputePath":"/var/run/debug"}}]`)}, nil,
			corev1.Container{Image: "i", Env: []corev1.EnvVar{name}, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{
				sockets, {Name: "test-pvc", MountPath: "/debug"},
			}}},
		"plugin": {[]change{podNetwork("default", boundTo("p"))}, []func(*template.Input){registered("p", v1.InterfaceBindingPlugin{SidecarImage: "i"})},
			corev1.Container{Image: "i", ImagePullPolicy: corev1.PullIfNotPresent, SecurityContext: asRoot, VolumeMounts: []corev1.VolumeMount{sockets},
				Env: []corev1.EnvVar{name, {Name: "NETWORK_BINDING_PLUGIN_NAME", Value: "p"}}}},
		"plugin with device info": {[]change{podNetwork("default", boundTo("p"))}, []func(*template.Input){
			registered("p", v1.InterfaceBindingPlugin{SidecarImage: "i", DownwardAPI: v1.DeviceInfo}), pullAlways,
		}, corev1.Container{Image: "i", ImagePullPolicy: corev1.PullAlways, SecurityContext: asRoot,
			VolumeMounts: []corev1.VolumeMount{sockets, {Name: "network-info-annotation", MountPath: "/etc/podinfo"}},
			Env:          []corev1.EnvVar{name, {Name: "NETWORK_BINDING_PLUGIN_NAME", Value: "p"}}}},
	} {
		t.Run(label, func(t *testing.T) {
			tc.want.Name, tc.want.TerminationMessagePolicy = "hook-sidecar-0", corev1.TerminationMessageFallbackToLogsOnError
			got := container(t, launcher(t, input(newVMI(tc.vmi...), tc.in...)), "hook-sidecar-0")
			if !equality.Semantic.DeepEqual(got, tc.want) {
				t.Error(cmp.Diff(tc.want, got))
			}
		})
	}
}

func pullAlways(in *template.Input) { in.Config.ImagePullPolicy = corev1.PullAlways }

func sidecarResources(requests, limits corev1.ResourceList) func(*template.Input) {
	return configured(v1.SideCar, requests, limits)
}

func TestSpecSidecars(t *testing.T) {
	// The order is neither that of the names nor that of the map.
	plugins := []func(*template.Input){
		registered("z", v1.InterfaceBindingPlugin{SidecarImage: "z"}), registered("a", v1.InterfaceBindingPlugin{SidecarImage: "a"}),
		registered("none", v1.InterfaceBindingPlugin{}),
	}
	vmi := newVMI(hookList(`[{"image":"h0"},{"image":"h1"}]`), volume("r0", image("someImage")),
		podNetwork("n0", boundTo("z")), secondary("n1", "n", boundTo("none")), secondary("n2", "n", boundTo("a")), secondary("n3", "n", boundTo("z")))
	pod := launcher(t, input(vmi, plugins...))
	var names, images []string
	for _, c := range pod.Spec.Containers {
		names, images = append(names, c.Name), append(images, c.Image)
	}
	if diff := cmp.Diff("compute hook-sidecar-0 hook-sidecar-1 hook-sidecar-2 hook-sidecar-3", strings.Join(names, " ")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("h0 h1 z a", strings.Join(images[1:], " ")); diff != "" {
		t.Error(diff)
	}
	compute := container(t, pod, "compute")
	if args := strings.Join(compute.Args, " "); !strings.Contains(args, "--hook-sidecars 4 ") {
		t.Errorf("the launcher waits for a different number of sidecars: %s", args)
	}
	if got := mountPaths(compute, "hook-sidecar-sockets"); got != "/var/run/kubevirt-hooks" {
		t.Errorf("sockets at %q", got)
	}
	if v := volumesNamed(pod, "hook-sidecar-sockets"); len(v) != 1 || v[0].EmptyDir == nil {
		t.Errorf("sockets in %v", v)
	}
}

func TestSpecSockets(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi    []change
		gates  []string
		volume string
		path   string
	}{
		"no hooks":         {nil, nil, "hook-sidecar-sockets", ""},
		"an empty list":    {[]change{hookList("[]")}, nil, "hook-sidecar-sockets", ""},
		"hooks":            {[]change{hookList(`[{"image":"i"}]`)}, nil, "hook-sidecar-sockets", "/var/run/kubevirt-hooks"},
		"gate Plugins":     {nil, []string{"Plugins"}, "kubevirt-plugin-sockets", "/var/run/kubevirt-plugin"},
		"no gate Plugins":  {[]change{hookList(`[{"image":"i"}]`)}, nil, "kubevirt-plugin-sockets", ""},
		"gate, not hooks'": {nil, []string{"Plugins"}, "hook-sidecar-sockets", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := launcher(t, input(newVMI(tc.vmi...), gates(tc.gates...)))
			if got := mountPaths(container(t, pod, "compute"), tc.volume); got != tc.path {
				t.Errorf("mounted at %q, want %q", got, tc.path)
			}
			if got := len(volumesNamed(pod, tc.volume)) == 1; got != (tc.path != "") {
				t.Errorf("volume there: %v", got)
			}
		})
	}
}

// TestSpecSidecarVolumes has the volumes of cases 118 and 119, and quirk 10.
func TestSpecSidecarVolumes(t *testing.T) {
	mode := int32(0o755)
	configMap := func(name, object string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: object}, DefaultMode: &mode,
		}}}
	}
	pvcVolume := func(name, claim string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}
	}
	const script = `{"image":"i","configMap":{"name":"test-cm","key":"script.sh","hookPath":"/usr/bin/onDefineDomain"}}`
	const debug = `{"image":"i","pvc":{"name":"test-pvc","volumePath":"/debug","sharedComputePath":"/var/run/debug"}}`
	for name, tc := range map[string]struct {
		vmi     []change
		volumes []corev1.Volume // at the end of the Pod's
		compute string          // where compute has the first of them
	}{
		"118: ConfigMap": {[]change{hookList(`[` + script + `]`)}, []corev1.Volume{configMap("test-cm", "test-cm")}, ""},
		"119: claim":     {[]change{hookList(`[` + debug + `]`)}, []corev1.Volume{pvcVolume("test-pvc", "test-pvc")}, "/var/run/debug"},
		"Q10: shared by two": {[]change{hookList(`[` + debug + `,` + debug + `,` + script + `,` + script + `]`)},
			[]corev1.Volume{pvcVolume("test-pvc", "test-pvc"), configMap("test-cm", "test-cm")}, "/var/run/debug"},
		"ConfigMap and claim of one name": {[]change{hookList(`[` + script + `,{"image":"i","pvc":{"name":"test-cm","volumePath":"/d"}}]`)},
			[]corev1.Volume{configMap("test-cm", "test-cm"), pvcVolume("hook-claim-6309ea98bb", "test-cm")}, ""},
		"name of the launcher's": {[]change{hookList(`[{"image":"i","pvc":{"name":"private","volumePath":"/d"}}]`)},
			[]corev1.Volume{pvcVolume("hook-claim-715dc8493c", "private")}, ""},
		"name that is none of a volume": {[]change{hookList(`[{"image":"i","pvc":{"name":"a.b","volumePath":"/d"}}]`)},
			[]corev1.Volume{pvcVolume("hook-claim-2e7336dc8e", "a.b")}, ""},
		"the guest's claim": {[]change{volume("test-pvc", pvc("test-pvc")), hookList(`[` + debug + `]`)}, nil,
			"/var/run/kubevirt-private/vmi-disks/test-pvc /var/run/debug"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := launcher(t, input(newVMI(tc.vmi...), configMaps("test-cm"),
				claim("test-pvc", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce)))
			got := pod.Spec.Volumes[len(pod.Spec.Volumes)-len(tc.volumes):]
			if diff := cmp.Diff(tc.volumes, append([]corev1.Volume(nil), got...)); diff != "" {
				t.Error(diff)
			}
			seen := map[string]bool{}
			for _, v := range pod.Spec.Volumes {
				if seen[v.Name] {
					t.Errorf("volume %s is there twice", v.Name)
				}
				seen[v.Name] = true
			}
			first := "test-pvc"
			if len(tc.volumes) > 0 {
				first = tc.volumes[0].Name
			}
			if got := mountPaths(container(t, pod, "compute"), first); got != tc.compute {
				t.Errorf("compute has %s at %q, want %q", first, got, tc.compute)
			}
		})
	}
}

func TestSidecars_Invalid(t *testing.T) {
	const cm = `"configMap":{"name":"test-cm","key":"k","hookPath":"/h"}`
	for name, tc := range map[string]struct {
		list  string
		field string // relative to the annotation
		class error
		text  string
	}{
		"no JSON":                {`[{"image":`, "", render.ErrInvalid, "complete"},
		"empty":                  {``, "", render.ErrInvalid, "complete"},
		"syntax":                 {`[{"image" "i"}]`, "", render.ErrInvalid, "character"},
		"no list":                {`{"image":"i"}`, "", render.ErrInvalid, "object"},
		"null":                   {`null`, "", render.ErrInvalid, "null"},
		"null in the list":       {`[{"image":"i"},null]`, "[1]", render.ErrInvalid, "null"},
		"more than a list":       {`[] []`, "", render.ErrInvalid, "unexpected data"},
		"unknown field":          {`[{"image":"i"},{"image":"i","imagepolicy":"Never"}]`, "[1]", render.ErrInvalid, "imagepolicy"},
		"kind of a value":        {`[{"image":"i"},{"image":7}]`, "[1].image", render.ErrInvalid, "number"},
		"kind of an inner value": {`[{"image":"i","configMap":{"name":[]}}]`, "[0].configMap.name", render.ErrInvalid, "array"},
		"118: missing ConfigMap": {`[{"image":"i"},{"image":"i","configMap":{"name":"gone","key":"k","hookPath":"/h"}}]`, "[1].configMap.name", render.ErrMissingFact, `"gone"`},
		"no image":               {`[{"image":"i"},{}]`, "[1].image", render.ErrInvalid, "SidecarShimImage"},
		"image":                  {`[{"image":" i"}]`, "[0].image", render.ErrInvalid, "white space"},
		"pull policy":            {`[{"image":"i","imagePullPolicy":"Sometimes"}]`, "[0].imagePullPolicy", render.ErrInvalid, "Sometimes"},
		"no ConfigMap":           {`[{"image":"i","configMap":{"key":"k","hookPath":"/h"}}]`, "[0].configMap.name", render.ErrInvalid, ""},
		"no key":                 {`[{"image":"i","configMap":{"name":"test-cm","hookPath":"/h"}}]`, "[0].configMap.key", render.ErrInvalid, ""},
		"key that climbs":        {`[{"image":"i","configMap":{"name":"test-cm","key":"../k","hookPath":"/h"}}]`, "[0].configMap.key", render.ErrInvalid, "../k"},
		"no hook path":           {`[{"image":"i","configMap":{"name":"test-cm","key":"k"}}]`, "[0].configMap.hookPath", render.ErrInvalid, ""},
		"relative path":          {`[{"image":"i","pvc":{"name":"c","volumePath":"d"}}]`, "[0].pvc.volumePath", render.ErrInvalid, ""},
		"path with a colon":      {`[{"image":"i","pvc":{"name":"c","volumePath":"/d:/e"}}]`, "[0].pvc.volumePath", render.ErrInvalid, ""},
		"the whole container":    {`[{"image":"i","pvc":{"name":"c","volumePath":"/"}}]`, "[0].pvc.volumePath", render.ErrInvalid, ""},
		"place of the sockets":   {`[{"image":"i","pvc":{"name":"c","volumePath":"/var/run/kubevirt-hooks"}}]`, "[0].pvc.volumePath", render.ErrInvalid, "sockets"},
		"one place for two":      {`[{"image":"i",` + cm + `,"pvc":{"name":"c","volumePath":"/h"}}]`, "[0].pvc.volumePath", render.ErrInvalid, "hookPath"},
		"no claim":               {`[{"image":"i","pvc":{"volumePath":"/d"}}]`, "[0].pvc.name", render.ErrInvalid, ""},
		"block device":           {`[{"image":"i","pvc":{"name":"block","volumePath":"/d"}}]`, "[0].pvc.name", render.ErrInvalid, "block"},
		"climbing shared path":   {`[{"image":"i","pvc":{"name":"c","volumePath":"/d","sharedComputePath":"/a/../b"}}]`, "[0].pvc.sharedComputePath", render.ErrInvalid, ""},
		"folder of the launcher": {`[{"image":"i","pvc":{"name":"c","volumePath":"/d","sharedComputePath":"/var/run/libvirt"}}]`, "[0].pvc.sharedComputePath", render.ErrInvalid, "libvirt-runtime"},
		"shared by two claims":   {`[{"image":"i","pvc":{"name":"c","volumePath":"/d","sharedComputePath":"/s"}},{"image":"i","pvc":{"name":"e","volumePath":"/d","sharedComputePath":"/s"}}]`, "[1].pvc.sharedComputePath", render.ErrInvalid, `"c"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(hookList(tc.list)), configMaps("test-cm"),
				claim("block", corev1.PersistentVolumeBlock, corev1.ReadWriteOnce)))
			wantError(t, err, hooksField+tc.field, tc.class)
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%q does not say %q", err, tc.text)
			}
		})
	}
}

// sidecarList is a creator of fixed sidecars.
type sidecarList []render.Sidecar

func (l sidecarList) Sidecars(template.Input) ([]render.Sidecar, error) { return l, nil }

type failingCreator struct{}

var errCreator = errors.New("no sidecars today")

func (failingCreator) Sidecars(template.Input) ([]render.Sidecar, error) { return nil, errCreator }

func TestHooksStage_CustomCreators(t *testing.T) {
	renderPod := func(creators ...template.SidecarCreator) (*corev1.Pod, error) {
		r, err := template.Default().Replace(template.StageHooks, template.HooksStage(creators...))
		if err != nil {
			t.Fatal(err)
		}
		return r.Launcher(input(newVMI()))
	}
	pod, err := renderPod(sidecarList{{Image: "a", Args: []string{"x"}}}, sidecarList{{Image: "b", DeviceInfo: true}})
	if err != nil {
		t.Fatal(err)
	}
	if c := container(t, pod, "hook-sidecar-1"); c.Image != "b" || mountPaths(c, "network-info-annotation") == "" {
		t.Errorf("got %+v", c)
	}
	if len(volumesNamed(pod, "network-info-annotation")) != 1 {
		t.Error("the volume of the sidecar is missing")
	}
	_, err = renderPod(sidecarList{{Image: "a"}}, sidecarList{{}})
	wantError(t, err, "sidecars[1].image", render.ErrInvalid)
	if _, err = renderPod(failingCreator{}); !errors.Is(err, errCreator) {
		t.Errorf("got %v, want the creator's error", err)
	}
}

// TestSpecSELinuxWorkaround has case 28.
func TestSpecSELinuxWorkaround(t *testing.T) {
	spc := func(in *template.Input) { in.Config.SELinuxLauncherType = "spc_t" }
	for name, tc := range map[string]struct {
		in   []func(*template.Input)
		want *corev1.SELinuxOptions
	}{
		"28: with a type": {[]func(*template.Input){gates("DockerSELinuxMCSWorkaround"), spc}, &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}},
		"without a type":  {[]func(*template.Input){gates("DockerSELinuxMCSWorkaround")}, &corev1.SELinuxOptions{Level: "s0"}},
		"gate off":        {[]func(*template.Input){spc}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := newVMI(hookList(`[{"image":"i"},{"image":"i"}]`), nonRootGuest)
			pod := presetLauncher(t, vmi, append(tc.in, func(in *template.Input) { in.Config.DisableSerialConsoleLog = false })...)
			for _, c := range []string{"hook-sidecar-0", "hook-sidecar-1"} {
				got := container(t, pod, c).SecurityContext
				if diff := cmp.Diff(tc.want, got.SELinuxOptions); diff != "" {
					t.Errorf("%s: %s", c, diff)
				}
				if *got.RunAsUser != 107 {
					t.Errorf("%s has lost the rest of its security context", c)
				}
			}
			for _, c := range []string{"compute", "guest-console-log"} {
				if got := container(t, pod, c).SecurityContext.SELinuxOptions; got != nil {
					t.Errorf("%s has %v", c, got)
				}
			}
		})
	}
}

func TestSidecars_Explained(t *testing.T) {
	e, err := template.Default().Explain(render.LauncherPod, input(
		newVMI(hookList(`[{"image":"i","pvc":{"name":"c","volumePath":"/d"}}]`), podNetwork("default", boundTo("p"))),
		registered("p", v1.InterfaceBindingPlugin{SidecarImage: "i"})))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"spec.volumes[c]":                       hooksField + "[0]",
		"spec.containers[hook-sidecar-0].image": hooksField + "[0]",
		"spec.containers[hook-sidecar-1].image": "Config.NetworkBindings[p]",
	} {
		origins, err := e.At(path)
		if err != nil {
			t.Fatal(err)
		}
		if o := origins[0]; o.From != want || o.Stage != template.StageSidecars {
			t.Errorf("got %v, want %s from %s", o, template.StageSidecars, want)
		}
	}
}

func TestSidecars_TemporaryAndTarget(t *testing.T) {
	in := targetInput(t)
	in.VMI.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"image":"i"}]`}
	for name, renderPod := range map[string]func(template.Input) (*corev1.Pod, error){
		"temporary": template.Default().Temporary, "target": template.Default().MigrationTarget,
	} {
		pod, err := renderPod(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		container(t, pod, "hook-sidecar-0")
	}
}
