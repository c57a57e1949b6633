// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/template"
)

// corpusPod is one Pod of the corpus: what it is rendered from, and where that is written.
type corpusPod struct {
	file, name string
	kind       template.PodKind
	in         template.Input
}

func (p corpusPod) render() (*corev1.Pod, error) { return template.Default().Render(p.kind, p.in) }

// corpusFiles are the files of the corpus. Each is a guest with the objects it needs; its comment says what its point is.
func corpusFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/corpus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func baseName(file string) string { return strings.TrimSuffix(filepath.Base(file), ".yaml") }

// corpus is every Pod of every file.
func corpus(t testing.TB) (all []corpusPod) {
	t.Helper()
	for _, file := range corpusFiles(t) {
		all = append(all, podsOf(t, file)...)
	}
	return all
}

// podsOf are the Pods that the objects of a file ask for: launcher and temporary Pod of a guest, the target of its
// migration, Pods for its hotplugged volumes, and exporters.
func podsOf(t testing.TB, file string) (pods []corpusPod) {
	t.Helper()
	base := baseName(file)
	l := readManifest(t, file)
	add := func(name string, kind template.PodKind, change func(*template.Input)) {
		in := template.Input{VMI: l.vmi, Config: l.config(), Facts: l.facts}
		if change != nil {
			change(&in)
		}
		pods = append(pods, corpusPod{file: base, name: base + "/" + name, kind: kind, in: in})
	}
	if l.vmi != nil {
		add("launcher", template.LauncherPod, nil)
		add("temporary", template.TemporaryPod, nil)
	}
	if l.migration != nil {
		add("target", template.TargetPod, func(in *template.Input) { in.Migration = l.move() })
	}
	if volumes := l.hotplugged(); len(volumes) > 0 && len(l.pods) > 0 {
		add("attachment", template.AttachmentPod, func(in *template.Input) {
			in.Hotplug = &template.Hotplug{Owner: l.pods[len(l.pods)-1], Volumes: volumes}
			if l.migration != nil {
				in.Migration = l.move()
			}
		})
		for _, v := range volumes {
			add("trigger-"+v, template.TriggerPod, func(in *template.Input) {
				in.Hotplug = &template.Hotplug{Owner: l.pods[0], Volumes: []string{v}}
			})
		}
	}
	if l.export != nil {
		add("exporter", template.ExporterPod, func(in *template.Input) { in.Export = &template.Export{Object: l.export} })
		add("export-server", template.ExporterPod, func(in *template.Input) {
			in.Export = &template.Export{Object: l.export, Server: &template.ExportServer{
				Claims: l.claims(), CertificateSecret: "export-cert", TokenSecret: "export-token", ManifestConfigMap: "manifests",
			}}
		})
	}
	return pods
}

// manifest is the content of one file.
type manifest struct {
	vmi       *v1.VirtualMachineInstance
	kv        *v1.KubeVirt
	facts     template.Facts
	migration *v1.VirtualMachineInstanceMigration
	pods      []*corev1.Pod
	node      *corev1.Node
	export    *exportv1.VirtualMachineExport
}

func (l *manifest) config() template.Config {
	c := template.ConfigFrom(l.kv, "quay.io/kubevirt/virt-launcher:v1.9.0")
	c.ExporterImage = "quay.io/kubevirt/virt-exportserver:v1.9.0"
	c.SidecarShimImage = "quay.io/kubevirt/sidecar-shim:v1.9.0"
	c.ImagePullSecret = "kubevirt-pull"
	return c
}

func (l *manifest) move() *template.Migration {
	return &template.Migration{
		UID: l.migration.UID, Name: l.migration.Name, AddedNodeSelector: l.migration.Spec.AddedNodeSelector,
		SourcePod: l.pods[0], SourceNode: l.node,
	}
}

func (l *manifest) claims() (claims []*corev1.PersistentVolumeClaim) {
	for _, c := range l.facts.Claims {
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int { return cmp.Compare(a.Name, b.Name) })
	return claims
}

func (l *manifest) hotplugged() (names []string) {
	if l.vmi == nil {
		return nil
	}
	for _, s := range l.vmi.Status.VolumeStatus {
		if s.HotplugVolume != nil {
			names = append(names, s.Name)
		}
	}
	return names
}

func readManifest(t testing.TB, file string) *manifest {
	t.Helper()
	l := &manifest{facts: template.Facts{
		Claims: map[string]*corev1.PersistentVolumeClaim{}, ConfigMaps: map[string]bool{},
		NetworkAttachmentDefinitions: map[string]*metav1.PartialObjectMetadata{},
	}}
	for _, doc := range documents(t, file) {
		l.add(t, file, doc)
	}
	return l
}

func documents(t testing.TB, file string) [][]byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(content, []byte("\n---\n"))
}

func decode[T any](t testing.TB, file string, doc []byte) *T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict(doc, &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return &v
}

func (l *manifest) add(t testing.TB, file string, doc []byte) {
	t.Helper()
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &head); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	switch head.Kind {
	case "VirtualMachineInstance":
		l.vmi = decode[v1.VirtualMachineInstance](t, file, doc)
	case "KubeVirt":
		l.kv = decode[v1.KubeVirt](t, file, doc)
	case "PersistentVolumeClaim":
		c := decode[corev1.PersistentVolumeClaim](t, file, doc)
		l.facts.Claims[c.Name] = c
	case "ConfigMap":
		l.facts.ConfigMaps[decode[corev1.ConfigMap](t, file, doc).Name] = true
	case "Namespace":
		l.facts.NamespaceLabels = decode[corev1.Namespace](t, file, doc).Labels
	case "ResourceQuota":
		l.facts.Quotas = append(l.facts.Quotas, decode[corev1.ResourceQuota](t, file, doc))
	case "NetworkAttachmentDefinition":
		n := decode[metav1.PartialObjectMetadata](t, file, doc)
		l.facts.NetworkAttachmentDefinitions[n.Namespace+"/"+n.Name] = n
	case "VirtualMachineInstanceMigration":
		l.migration = decode[v1.VirtualMachineInstanceMigration](t, file, doc)
	case "Pod":
		l.pods = append(l.pods, decode[corev1.Pod](t, file, doc))
	case "Node":
		l.node = decode[corev1.Node](t, file, doc)
	case "VirtualMachineExport":
		l.export = decode[exportv1.VirtualMachineExport](t, file, doc)
	default:
		t.Fatalf("%s: kind %q", file, head.Kind)
	}
}
