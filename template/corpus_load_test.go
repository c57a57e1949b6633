// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// corpusPod is one Pod of the corpus with its input and file.
type corpusPod struct {
	file, name string
	kind       render.PodKind
	in         template.Input
}

func (p corpusPod) render() (*corev1.Pod, error) { return template.Default().Render(p.kind, p.in) }

// corpusFiles returns the files of the corpus. Each has a VMI with the objects it needs; its comment describes its purpose.
func corpusFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/corpus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func baseName(file string) string { return strings.TrimSuffix(filepath.Base(file), ".yaml") }

// corpus returns every Pod of every file.
func corpus(t testing.TB) (all []corpusPod) {
	t.Helper()
	for _, file := range corpusFiles(t) {
		all = append(all, podsOf(t, file)...)
	}
	return all
}

// podsOf returns the Pods of the objects in a file: launcher and temporary Pod of a VMI, the target of its migration, Pods
// for its hotplugged volumes, and exporters.
func podsOf(t testing.TB, file string) (pods []corpusPod) {
	t.Helper()
	cluster := readCluster(t, file)
	base := baseName(file)
	add := func(name string, kind render.PodKind) *template.Input {
		in, err := cluster.Input(kind)
		if errors.Is(err, render.ErrMissingFact) {
			return nil // the file has no Pod of this kind
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		in.Config.SidecarShimImage = "quay.io/kubevirt/sidecar-shim:v1.9.0"
		in.Config.ImagePullSecret = "kubevirt-pull"
		pods = append(pods, corpusPod{file: base, name: base + "/" + name, kind: kind, in: in})
		return &pods[len(pods)-1].in
	}
	add("launcher", render.LauncherPod)
	add("temporary", render.TemporaryPod)
	add("target", render.TargetPod)
	if in := add("attachment", render.AttachmentPod); in != nil {
		for _, volume := range in.Hotplug.Volumes {
			cluster.Volumes = []string{volume}
			add("trigger-"+volume, render.TriggerPod)
		}
	}
	add("exporter", render.ExporterPod)
	if in := add("export-server", render.ExporterPod); in != nil {
		in.Export.Server = &render.ExportServer{
			Claims: claimsOf(t, file), CertificateSecret: "export-cert", TokenSecret: "export-token", ManifestConfigMap: "manifests",
		}
	}
	return pods
}

func readObjects(t testing.TB, file string) []offline.Object {
	t.Helper()
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	objects, err := offline.Read(file, content)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func readCluster(t testing.TB, file string) *offline.Cluster {
	t.Helper()
	cluster, err := offline.NewCluster(readObjects(t, file)...)
	if err != nil {
		t.Fatal(err)
	}
	cluster.LauncherImage = "quay.io/kubevirt/virt-launcher:v1.9.0"
	cluster.ExporterImage = "quay.io/kubevirt/virt-exportserver:v1.9.0"
	return cluster
}

func claimsOf(t testing.TB, file string) (claims []*corev1.PersistentVolumeClaim) {
	t.Helper()
	for _, o := range readObjects(t, file) {
		if c, ok := o.Value.(*corev1.PersistentVolumeClaim); ok {
			claims = append(claims, c)
		}
	}
	return claims
}

// TestCorpus_PodKinds fails if files are not read as intended any more.
func TestCorpus_PodKinds(t *testing.T) {
	if files := corpusFiles(t); len(files) < 60 {
		t.Errorf("%d files", len(files))
	}
	count := map[render.PodKind]int{}
	for _, p := range corpus(t) {
		count[p.kind]++
	}
	for _, kind := range []render.PodKind{
		render.LauncherPod, render.TemporaryPod, render.TargetPod, render.AttachmentPod, render.TriggerPod, render.ExporterPod,
	} {
		if count[kind] < 3 {
			t.Errorf("%d of kind %s", count[kind], kind)
		}
	}
}
