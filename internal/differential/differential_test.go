// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/admit"
)

// launcherImage is the image of KubeVirt's Pods in testdata.
const launcherImage = "registry:5000/kubevirt/virt-launcher:devel"

// guest is one of the inputs with its defaults, and KubeVirt's output for it.
type guest struct {
	name    string
	cluster *offline.Cluster
	theirs  *v1.VirtualMachineInstance
}

// guests reads all inputs.
func guests(t *testing.T) []guest {
	t.Helper()
	files, err := filepath.Glob("testdata/inputs/*.yaml")
	if err != nil || len(files) != 60 {
		t.Fatalf("%d inputs, %v", len(files), err)
	}
	all := make([]guest, 0, len(files))
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := offline.Read(file, f)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		c, err := offline.NewCluster(objects...)
		if err != nil {
			t.Fatal(err)
		}
		g := guest{name: strings.TrimSuffix(filepath.Base(file), ".yaml"), cluster: c}
		g.theirs = decode[v1.VirtualMachineInstance](t, "testdata/kubevirt/"+g.name+".defaults.json")
		config := admit.ConfigFrom(c.KubeVirt)
		config.Request.FirmwareUUID = g.theirs.Spec.Domain.Firmware.UUID // drawn at random
		admit.Default(c.VMI, config)
		c.LauncherImage = launcherImage
		all = append(all, g)
	}
	return all
}

func decode[T any](t *testing.T, file string) *T {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return out
}

// pod renders the launcher Pod.
func (g *guest) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	in, err := g.cluster.Input(render.LauncherPod)
	if err != nil {
		t.Fatalf("%s: %v", g.name, err)
	}
	pod, err := template.Default().Render(render.LauncherPod, in)
	if err != nil {
		t.Fatalf("%s: %v", g.name, err)
	}
	return pod
}

// domain converts the VMI with the controller's report of claims.
func (g *guest) domain(t *testing.T) *libvirtxml.Domain {
	t.Helper()
	in, err := g.cluster.Input(render.LauncherPod)
	if err != nil {
		t.Fatal(err)
	}
	vmi := g.cluster.VMI.DeepCopy()
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.DataVolume != nil:
			name = v.DataVolume.Name
		case v.Ephemeral != nil:
			name = v.Ephemeral.PersistentVolumeClaim.ClaimName
		}
		if claim := in.Facts.Claims[name]; claim != nil {
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{
				Name: v.Name, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{VolumeMode: claim.Spec.VolumeMode},
			})
		}
	}
	facts := assume.Facts(vmi)
	facts.Cluster, facts.SMBIOS = convert.ClusterFrom(g.cluster.KubeVirt)
	d, err := convert.Convert(vmi, facts)
	if err != nil {
		t.Fatalf("%s: %v", g.name, err)
	}
	return d
}

// withoutPlaces returns the domain as KubeVirt passes it to libvirt, which assigns the PCI addresses of devices: those are
// compared separately.
func withoutPlaces(t *testing.T, d *libvirtxml.Domain, theirs tree) tree {
	t.Helper()
	text, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	ours := treeOfXML(t, text)
	for path := range ours {
		_, theirsToo := theirs[path]
		device, _, isAddress := strings.Cut(path, "/address@")
		pci := isAddress && (ours[device+"/address@type"] == "pci" || ours[device+"/address@type"] == "")
		if !theirsToo && (pci || strings.HasPrefix(path, "/devices/controller[pci")) {
			delete(ours, path)
		}
	}
	return ours
}

// without returns a Pod without random fields and fields of the request that creates it.
func without(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.APIVersion, out.Kind, out.Namespace, out.Name, out.GenerateName = "", "", "", "", ""
	for i := range out.Spec.Containers {
		args := out.Spec.Containers[i].Args
		if at := slices.Index(args, "--qemu-timeout"); at >= 0 {
			args[at+1] = "random"
		}
	}
	return out
}

// difference is a field with different values.
type difference struct{ where, path, guest, theirs, ours string }

// compare returns the differing fields; "-" stands for an unset field.
func compare(where, guest string, theirs, ours tree) (found []difference) {
	paths := map[string]bool{}
	for path := range theirs {
		paths[path] = true
	}
	for path := range ours {
		paths[path] = true
	}
	valueOf := func(t tree, path string) string {
		if v, there := t[path]; there {
			return "'" + v + "'"
		}
		return "-"
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if a, b := valueOf(theirs, path), valueOf(ours, path); a != b {
			found = append(found, difference{where, path, guest, a, b})
		}
	}
	return found
}

func differences(t *testing.T) (found []difference) {
	t.Helper()
	for _, g := range guests(t) {
		found = append(found, compare("defaults", g.name, treeOfJSON(t, g.theirs), treeOfJSON(t, g.cluster.VMI))...)
		pod := decode[corev1.Pod](t, "testdata/kubevirt/"+g.name+".pod.json")
		found = append(found, compare("Pod", g.name, treeOfJSON(t, without(pod)), treeOfJSON(t, without(g.pod(t))))...)
		text, err := os.ReadFile("testdata/kubevirt/" + g.name + ".xml")
		if os.IsNotExist(err) {
			continue // KubeVirt's converter reads its devices from a node
		}
		if err != nil {
			t.Fatal(err)
		}
		theirs := treeOfXML(t, string(text))
		found = append(found, compare("domain", g.name, theirs, withoutPlaces(t, g.domain(t), theirs))...)
	}
	return found
}

// TestDifferences_Documented compares virtloom's output for 60 VMIs with KubeVirt's: each differing field is in the table
// of docs/with-kubevirt.md, with its reason, and each row of the table has the correct number of fields and VMIs.
func TestDifferences_Documented(t *testing.T) {
	rows := documented(t)
	type seen struct {
		guests map[string]bool
		fields int
	}
	met := make([]seen, len(rows))
	for _, d := range differences(t) {
		i := slices.IndexFunc(rows, func(r row) bool { return r.where == d.where && r.matches(d.path) })
		if i < 0 {
			t.Errorf("%s: %s of the %s: KubeVirt has %s, virtloom %s, not documented", d.guest, d.path, d.where, d.theirs, d.ours)
			continue
		}
		if met[i].guests == nil {
			met[i].guests = map[string]bool{}
		}
		met[i].guests[d.guest] = true
		met[i].fields++
	}
	for i, r := range rows {
		if got := len(met[i].guests); got != r.guests || met[i].fields != r.fields {
			t.Errorf("%s %s: %d fields of %d guests differ, the documentation has %d of %d", r.where, r.pattern, met[i].fields, got, r.fields, r.guests)
		}
	}
}

// TestAddresses_EqualKubeVirt compares the PCI addresses of devices with those that libvirt assigned in KubeVirt's domain.
func TestAddresses_EqualKubeVirt(t *testing.T) {
	want := *decode[map[string]map[string]string](t, "testdata/addresses.json")
	differing := map[string]bool{}
	for _, g := range guests(t) {
		if want[g.name] == nil {
			continue // libvirt needs a larger host for it
		}
		var wrong []string
		got := places(g.domain(t))
		for key, address := range want[g.name] {
			if got[key] != address {
				wrong = append(wrong, key+": KubeVirt's at "+address+", virtloom's at "+got[key])
			}
		}
		slices.Sort(wrong)
		differing[g.name] = len(wrong) > 0
		if reason := elsewhere[g.name]; (reason != "") != (len(wrong) > 0) {
			t.Errorf("%s: listed: %q\n\t%s", g.name, reason, strings.Join(wrong, "\n\t"))
		}
	}
	for name := range elsewhere {
		if !differing[name] {
			t.Errorf("elsewhere names %s, which does not differ", name)
		}
	}
}
