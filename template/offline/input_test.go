// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// Manifests of a running VMI, as a cluster has them.
const (
	vmi = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: testvmi, namespace: ns, uid: u-1},
		spec: {domain: {devices: {}}, volumes: [
			{name: root, persistentVolumeClaim: {claimName: c}}, {name: plugged, persistentVolumeClaim: {claimName: d, hotpluggable: true}},
			{name: data, dataVolume: {name: e, hotpluggable: true}}, {name: reported, persistentVolumeClaim: {claimName: f}},
			{name: dump, memoryDump: {claimName: g, hotpluggable: true}}], utilityVolumes: [{name: tool, claimName: h}]},
		status: {nodeName: n1, volumeStatus: [{name: root, target: vda}, {name: reported, target: sda, hotplugVolume: {}}]}}`
	fromGit = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: testvmi, namespace: ns}, spec: {domain: {devices: {}}}}`
	source  = `{apiVersion: v1, kind: Pod, metadata: {name: source, namespace: ns, uid: p-1, labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: u-1},
		ownerReferences: [{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, name: testvmi, uid: u-1, controller: true}]}, spec: {nodeName: n1, containers: []}}`
	target = `{apiVersion: v1, kind: Pod, metadata: {name: target, namespace: ns, uid: p-2, labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: u-1, kubevirt.io/migrationJobUID: m-1},
		annotations: {kubevirt.io/migrationJobName: move}}, spec: {nodeName: n2, containers: []}}`
	move   = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: move, namespace: ns, uid: m-1}, spec: {vmiName: testvmi, addedNodeSelector: {zone: a}}}`
	node   = `{apiVersion: v1, kind: Node, metadata: {name: n1}}`
	export = `{apiVersion: export.kubevirt.io/v1, kind: VirtualMachineExport, metadata: {name: e, namespace: ns}, spec: {source: {kind: PersistentVolumeClaim, name: c}}}`
	config = `{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: kubevirt, namespace: kubevirt}, spec: {imageRegistry: example.com/kv, imageTag: v1}}`
)

func cluster(t testing.TB, manifests ...string) *offline.Cluster {
	t.Helper()
	c, err := offline.NewCluster(read(t, strings.Join(manifests, "\n---\n"))...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNew_Duplicates(t *testing.T) {
	for name, tt := range map[string]struct {
		manifests []string
		want      string
	}{
		"two guests": {
			[]string{vmi, strings.Replace(vmi, "name: testvmi", "name: other", 1)},
			"test.yaml: document 2 (line 8): VirtualMachineInstance ns/other: kind: is a second VirtualMachineInstance in addition to " +
				"VirtualMachineInstance ns/testvmi of test.yaml: document 1 (line 1); render with one at a time",
		},
		"a guest and a VirtualMachine": {
			[]string{vmi, "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, namespace: ns}}"},
			"test.yaml: document 2 (line 8): VirtualMachine ns/vm: kind: is one more VMI beside " +
				"VirtualMachineInstance ns/testvmi of test.yaml: document 1 (line 1); render with one at a time",
		},
		"two configurations": {
			[]string{config, strings.Replace(config, "name: kubevirt", "name: other", 1)},
			"test.yaml: document 2 (line 3): KubeVirt kubevirt/other: kind: is a second KubeVirt in addition to " +
				"KubeVirt kubevirt/kubevirt of test.yaml: document 1 (line 1); render with one at a time",
		},
		"one object twice": {
			[]string{node, move, node},
			"test.yaml: document 3 (line 5): Node n1: metadata.name: is a duplicate of test.yaml: document 1 (line 1); keep one of them",
		},
	} {
		c, err := offline.NewCluster(read(t, strings.Join(tt.manifests, "\n---\n"))...)
		if c != nil || !errors.Is(err, render.ErrInvalid) || err.Error() != tt.want {
			t.Errorf("%s: error\n%v\nwant\n%s", name, err, tt.want)
		}
	}
}

func TestInput_FactsOfNamespace(t *testing.T) {
	of := func(kind, namespace, name string) string {
		version := "v1"
		if kind == "NetworkAttachmentDefinition" {
			version = "k8s.cni.cncf.io/v1"
		}
		return "{apiVersion: " + version + ", kind: " + kind + ", metadata: {name: " + name + ", namespace: " + namespace + ", annotations: {a: b}}}"
	}
	c := cluster(t, vmi, config,
		of("PersistentVolumeClaim", "ns", "c"), of("PersistentVolumeClaim", "other", "d"), of("ConfigMap", "ns", "m"), of("ConfigMap", "other", "o"),
		of("ResourceQuota", "ns", "q"), of("ResourceQuota", "other", "r"),
		of("NetworkAttachmentDefinition", "ns", "net"), of("NetworkAttachmentDefinition", "other", "net"),
		"{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {l: mine}}}", "{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {l: theirs}}}")
	in, err := c.Input(render.LauncherPod)
	if err != nil {
		t.Fatal(err)
	}
	if in.VMI != c.VMI || in.Migration != nil || in.Hotplug != nil || in.Export != nil || in.Config.LauncherImage != "example.com/kv/virt-launcher:v1" {
		t.Errorf("input %+v", in)
	}
	f := in.Facts
	if got := slices.Sorted(maps.Keys(f.Claims)); !slices.Equal(got, []string{"c"}) || f.Claims["c"].Name != "c" {
		t.Errorf("claims %v", got)
	}
	if diff := cmp.Diff(map[string]bool{"m": true}, f.ConfigMaps); diff != "" {
		t.Error(diff)
	}
	if len(f.Quotas) != 1 || f.Quotas[0].Name != "q" {
		t.Errorf("quotas %v", f.Quotas)
	}
	if diff := cmp.Diff(map[string]string{"l": "mine"}, f.NamespaceLabels); diff != "" {
		t.Error(diff)
	}
	if got := slices.Sorted(maps.Keys(f.NetworkAttachmentDefinitions)); !slices.Equal(got, []string{"ns/net", "other/net"}) ||
		f.NetworkAttachmentDefinitions["ns/net"].Annotations["a"] != "b" {
		t.Errorf("definitions %v", got)
	}
}

func TestImagesOfTheCluster(t *testing.T) {
	for name, tt := range map[string]struct{ status, own, launcher, exporter string }{
		"spec":     {"spec: {imageRegistry: r, imageTag: v1}, status: {observedKubeVirtRegistry: o, observedKubeVirtVersion: v0}", "", "r/virt-launcher:v1", "r/virt-exportserver:v1"},
		"observed": {"status: {observedKubeVirtRegistry: o, observedKubeVirtVersion: v0, targetKubeVirtRegistry: t, targetKubeVirtVersion: v2}", "", "o/virt-launcher:v0", "o/virt-exportserver:v0"},
		"target":   {"status: {targetKubeVirtRegistry: t, targetKubeVirtVersion: v2}", "", "t/virt-launcher:v2", "t/virt-exportserver:v2"},
		"given":    {"spec: {imageRegistry: r, imageTag: v1}", "mine", "mine", "mine"},
	} {
		c := cluster(t, vmi, export, "{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, "+tt.status+"}")
		c.LauncherImage, c.ExporterImage = tt.own, tt.own
		in, err := c.Input(render.LauncherPod)
		if err != nil || in.Config.LauncherImage != tt.launcher || in.Config.ExporterImage != tt.exporter {
			t.Errorf("%s: %q, %q, error %v", name, in.Config.LauncherImage, in.Config.ExporterImage, err)
		}
	}
}

func TestInput_MissingObjects(t *testing.T) {
	with := func(old, now string, manifest string) string { return strings.Replace(manifest, old, now, 1) }
	for name, tt := range map[string]struct {
		kind      render.PodKind
		manifests []string
		volumes   []string
		want      string
	}{
		"launcher without a guest": {render.LauncherPod, []string{config}, nil, "VirtualMachineInstance not found; add its manifest with -f"},
		"launcher without image":   {render.LauncherPod, []string{vmi}, nil, "the launcher image must be set; use --image, or add a KubeVirt manifest with spec.imageRegistry and spec.imageTag"},
		"image without tag":        {render.LauncherPod, []string{vmi, with(", imageTag: v1", "", config)}, nil, "the launcher image must be set"},
		"exporter without export":  {render.ExporterPod, []string{vmi, config}, nil, "VirtualMachineExport not found; add its manifest with -f"},
		"exporter without image":   {render.ExporterPod, []string{export}, nil, "the exporter image must be set; use --exporter-image"},
		"two exports": {
			render.ExporterPod, []string{config, export, with("name: e", "name: f", export)}, nil,
			"test.yaml: document 3 (line 5): VirtualMachineExport ns/f: is a second VirtualMachineExport in addition to VirtualMachineExport ns/e of test.yaml: document 2 (line 3); remove one of them",
		},
		"target without migration": {
			render.TargetPod, []string{config, vmi, source}, nil,
			"VirtualMachineInstance ns/testvmi: unfinished VirtualMachineInstanceMigration with spec.vmiName testvmi not found; add its manifest with -f",
		},
		"target with another guest's migration": {render.TargetPod, []string{config, vmi, source, with("vmiName: testvmi", "vmiName: other", move)}, nil, "VirtualMachineInstance ns/testvmi: unfinished VirtualMachineInstanceMigration with"},
		"target with a migration elsewhere":     {render.TargetPod, []string{config, vmi, source, with("namespace: ns", "namespace: other", move)}, nil, "VirtualMachineInstance ns/testvmi: unfinished VirtualMachineInstanceMigration with"},
		"target with a finished migration":      {render.TargetPod, []string{config, vmi, source, with("spec:", "status: {phase: Succeeded}, spec:", move)}, nil, "VirtualMachineInstance ns/testvmi: unfinished VirtualMachineInstanceMigration with"},
		"target with two migrations":            {render.TargetPod, []string{config, vmi, source, move, with("name: move", "name: again", move)}, nil, "test.yaml: document 5 (line "},
		"target without source":                 {render.TargetPod, []string{config, vmi, move}, nil, "VirtualMachineInstance ns/testvmi: launcher Pod not found; add its manifest with -f"},
		"target with the target alone":          {render.TargetPod, []string{config, vmi, move, target}, nil, "VirtualMachineInstance ns/testvmi: launcher Pod not found"},
		"source of a former guest":              {render.TargetPod, []string{config, vmi, move, strings.ReplaceAll(source, "u-1", "u-0")}, nil, "VirtualMachineInstance ns/testvmi: launcher Pod not found"},
		"source elsewhere":                      {render.TargetPod, []string{config, vmi, move, with("namespace: ns", "namespace: other", source)}, nil, "VirtualMachineInstance ns/testvmi: launcher Pod not found"},
		"source ended":                          {render.TargetPod, []string{config, vmi, move, with("spec:", "status: {phase: Failed}, spec:", source)}, nil, "VirtualMachineInstance ns/testvmi: launcher Pod not found"},
		"two sources": {
			render.TargetPod, []string{config, vmi, move, source, with("name: source", "name: second", source)}, nil,
			"test.yaml: document 5 (line 15): Pod ns/second: is a second launcher Pod in addition to Pod ns/source of test.yaml: document 4 (line 12); remove one of them",
		},
		"attachment without owner":       {render.AttachmentPod, []string{config, vmi}, nil, "VirtualMachineInstance ns/testvmi: launcher Pod not found"},
		"trigger without owner":          {render.TriggerPod, []string{config, vmi}, []string{"root"}, "VirtualMachineInstance ns/testvmi: launcher Pod not found"},
		"attachment without volume":      {render.AttachmentPod, []string{config, fromGit, source}, nil, "test.yaml: document 2 (line 3): VirtualMachineInstance ns/testvmi: spec.volumes: no volume is hotplugged; select one with --volume"},
		"trigger of many volumes":        {render.TriggerPod, []string{config, vmi, source}, nil, "test.yaml: document 2 (line 3): VirtualMachineInstance ns/testvmi: spec.volumes: more than one volume is hotplugged, but a trigger takes one; select one with --volume"},
		"attachment with two migrations": {render.AttachmentPod, []string{config, vmi, source, move, with("name: move", "name: again", move)}, nil, "test.yaml: document 5 (line "},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, tt.manifests...)
			c.Volumes = tt.volumes
			_, err := c.Input(tt.kind)
			var fault *offline.Error
			if !errors.As(err, &fault) || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("error\n%v\nwant\n%s", err, tt.want)
			}
			if fault.Remedy == "" || !errors.Is(err, render.ErrMissingFact) && !errors.Is(err, render.ErrInvalid) {
				t.Errorf("error %#v has no remedy or class", fault)
			}
		})
	}
}

func TestInput_MigrationSource(t *testing.T) {
	with := func(old, now string, manifest string) string { return strings.Replace(manifest, old, now, 1) }
	bare := with(`, labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: u-1}`, "", source)
	for name, tt := range map[string]struct {
		manifests []string
		node      string
	}{
		"labelled and controlled":             {[]string{vmi, source, move, node}, "n1"},
		"without its node":                    {[]string{vmi, source, move}, ""},
		"controlled alone":                    {[]string{vmi, bare, move, node}, "n1"},
		"labelled alone":                      {[]string{vmi, with("controller: true", "controller: false", source), move}, ""},
		"beside the target":                   {[]string{vmi, target, source, move, node}, "n1"},
		"target of an earlier migration":      {[]string{vmi, with("kubevirt.io/created-by: u-1", "kubevirt.io/created-by: u-1, kubevirt.io/migrationJobUID: m-0", source), move, node}, "n1"},
		"beside a Pod on another node":        {[]string{vmi, with("name: source", "name: old", with("nodeName: n1", "nodeName: n0", source)), source, move, node}, "n1"},
		"beside a hotplug Pod":                {[]string{vmi, source, with("kubevirt.io: virt-launcher", "kubevirt.io: hotplug-disk", with("name: source", "name: hp", source)), move, node}, "n1"},
		"a guest without UID, known by name":  {[]string{fromGit, source, move, node}, "n1"},
		"a migration without UID, by name":    {[]string{fromGit, source, target, with(", uid: m-1", "", move), node}, "n1"},
		"an uncontrolled Pod, known by label": {[]string{fromGit, with("controller: true", "controller: false", with("kubevirt.io/created-by: u-1}", "kubevirt.io/created-by: u-1}, annotations: {kubevirt.io/domain: testvmi}", source)), move}, ""},
		"an older migration is finished":      {[]string{vmi, source, with("spec:", "status: {phase: Failed}, spec:", with("name: move", "name: old", move)), move, node}, "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := cluster(t, append(tt.manifests, config)...).Input(render.TargetPod)
			if err != nil {
				t.Fatal(err)
			}
			m := in.Migration
			if m == nil || m.Name != "move" || m.UID == "" || m.AddedNodeSelector["zone"] != "a" || m.SourcePod == nil || m.SourcePod.Name != "source" {
				t.Fatalf("migration %+v", m)
			}
			got := ""
			if m.SourceNode != nil {
				got = m.SourceNode.Name
			}
			if got != tt.node {
				t.Errorf("source node %q, want %q", got, tt.node)
			}
		})
	}
}

func TestInput_Hotplug(t *testing.T) {
	for name, tt := range map[string]struct {
		kind      render.PodKind
		manifests []string
		given     []string
		volumes   []string
		owner     string
		migration string
	}{
		"all that are hotplugged":        {render.AttachmentPod, []string{vmi, source}, nil, []string{"plugged", "data", "reported", "dump", "tool"}, "source", ""},
		"those given":                    {render.AttachmentPod, []string{vmi, source}, []string{"data", "root"}, []string{"data", "root"}, "source", ""},
		"trigger":                        {render.TriggerPod, []string{vmi, source}, []string{"data"}, []string{"data"}, "source", ""},
		"trigger of the only volume":     {render.TriggerPod, []string{strings.Replace(fromGit, "spec: {", "spec: {volumes: [{name: a, dataVolume: {name: b, hotpluggable: true}}], ", 1), source}, nil, []string{"a"}, "source", ""},
		"beside a migration's target":    {render.AttachmentPod, []string{vmi, source, target, move}, []string{"data"}, []string{"data"}, "target", "move"},
		"a migration has no target yet":  {render.AttachmentPod, []string{vmi, source, move}, []string{"data"}, []string{"data"}, "source", ""},
		"trigger during a migration":     {render.TriggerPod, []string{vmi, source, target, move}, []string{"data"}, []string{"data"}, "source", ""},
		"target by the migration's name": {render.AttachmentPod, []string{fromGit, source, strings.Replace(target, "annotations: {", "annotations: {kubevirt.io/domain: testvmi, ", 1), strings.Replace(move, ", uid: m-1", "", 1)}, []string{"data"}, []string{"data"}, "target", "move"},
		"a target of another migration":  {render.AttachmentPod, []string{vmi, source, strings.Replace(target, "m-1", "m-0", 1), move}, []string{"data"}, []string{"data"}, "source", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, append(tt.manifests, config)...)
			c.Volumes = tt.given
			in, err := c.Input(tt.kind)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.volumes, in.Hotplug.Volumes); diff != "" || in.Hotplug.Owner.Name != tt.owner {
				t.Errorf("owner %s, volumes %s", in.Hotplug.Owner.Name, diff)
			}
			got := ""
			if in.Migration != nil {
				got = in.Migration.Name
				if in.Migration.SourcePod.Name != "source" {
					t.Errorf("source %s", in.Migration.SourcePod.Name)
				}
			}
			if got != tt.migration {
				t.Errorf("migration %q, want %q", got, tt.migration)
			}
		})
	}
}

func TestInput_ExporterWithoutVMI(t *testing.T) {
	in, err := cluster(t, export, config).Input(render.ExporterPod)
	if err != nil || in.VMI != nil || in.Export.Object.Name != "e" || in.Config.ExporterImage != "example.com/kv/virt-exportserver:v1" {
		t.Errorf("input %+v, error %v", in, err)
	}
}

func TestInput_DefaultedVMI(t *testing.T) {
	c := cluster(t, fromGit, source, move, config)
	defaulted, err := offline.Default(c.VMI, c.KubeVirt)
	if err != nil {
		t.Fatal(err)
	}
	c.VMI = defaulted
	in, err := c.Input(render.TargetPod)
	if err != nil || in.VMI != defaulted || in.Migration.SourcePod.Name != "source" {
		t.Errorf("input %+v, error %v", in, err)
	}
}
