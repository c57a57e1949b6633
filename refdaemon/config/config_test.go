// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// variants are what there is to install.
var variants = []string{"default", "complete"}

// built is what kustomize makes of a folder.
func built(t *testing.T, folder string) []byte {
	t.Helper()
	rigtest.Need(t)
	bin, err := rig.BinDir()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), "kustomize", folder)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize %s: %v\n%s", folder, err, problems.String())
	}
	if problems.Len() > 0 {
		t.Errorf("kustomize %s: %s", folder, problems.String())
	}
	return text
}

func objects(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	all, err := config.Decode(bytes.NewReader(built(t, folder)))
	must(t, err)
	return all
}

// each runs a test with the objects of each variant.
func each(t *testing.T, test func(*testing.T, []*unstructured.Unstructured)) {
	t.Helper()
	for _, v := range variants {
		t.Run(v, func(t *testing.T) { test(t, objects(t, v)) })
	}
}

// as reads an object as one of a Go type, every field of which is known.
func as[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, out, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return out
}

// of are the objects of a kind.
func of[T any](t *testing.T, all []*unstructured.Unstructured, kind string) []*T {
	t.Helper()
	var found []*T
	for _, o := range all {
		if o.GetKind() == kind {
			found = append(found, as[T](t, o))
		}
	}
	if len(found) == 0 {
		t.Fatalf("there is no %s", kind)
	}
	return found
}

// workload is what Pods are made from.
type workload struct {
	namespace, name string
	pod             corev1.PodTemplateSpec
}

func (w *workload) container() *corev1.Container { return &w.pod.Spec.Containers[0] }

func workloads(t *testing.T, all []*unstructured.Unstructured) map[string]*workload {
	t.Helper()
	found := map[string]*workload{}
	for _, d := range of[appsv1.Deployment](t, all, "Deployment") {
		found["controller"] = &workload{d.Namespace, d.Name, d.Spec.Template}
	}
	for _, d := range of[appsv1.DaemonSet](t, all, "DaemonSet") {
		found["node"] = &workload{d.Namespace, d.Name, d.Spec.Template}
	}
	for name, w := range found {
		var names []string
		for i := range w.pod.Spec.Containers {
			names = append(names, w.pod.Spec.Containers[i].Name)
		}
		if want := beside[name]; len(w.pod.Spec.InitContainers) != 0 || !slices.Equal(names, append([]string{name}, want...)) {
			t.Fatalf("%s: containers %v", name, names)
		}
	}
	return found
}

// beside are the containers beside those of the daemons.
var beside = map[string][]string{"node": {"hypervisor"}}

// folded returns a value of an object with any white space in its texts as one blank: kustomize writes folded expressions of
// several lines with more line breaks than it has read.
func folded(value any) any {
	switch v := value.(type) {
	case string:
		return strings.Join(strings.Fields(v), " ")
	case []any:
		for i := range v {
			v[i] = folded(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = folded(v[key])
		}
	}
	return value
}

func TestManifests_MatchKustomize(t *testing.T) {
	all, err := config.Manifests()
	must(t, err)
	want := objects(t, "default")
	if len(all) != len(want) {
		t.Fatalf("%d objects, want %d", len(all), len(want))
	}
	for i, o := range all {
		if got, want := folded(o.Object), folded(want[i].Object); !reflect.DeepEqual(got, want) {
			t.Errorf("object %d is %v, want %v", i, got, want)
		}
	}
}

func TestManifests_Independent(t *testing.T) {
	all, err := config.Manifests()
	must(t, err)
	all[0].SetName("changed")
	again, err := config.Manifests()
	must(t, err)
	if again[0].GetName() == "changed" {
		t.Error("the change of one caller is seen by the next")
	}
}

func TestDecode_InvalidManifest(t *testing.T) {
	for name, text := range map[string]string{"no YAML": "kind: [", "no kind": "metadata: {name: a}\n"} {
		if all, err := config.Decode(strings.NewReader(text)); err == nil {
			t.Errorf("%s: %v", name, all)
		}
	}
	if all, err := config.Decode(strings.NewReader("---\n# nothing\n---\n")); err != nil || len(all) != 0 {
		t.Errorf("nothing: %v, %v", all, err)
	}
}

// TestNodeAgent_GracePeriod makes sure of what a migration that is under way when an agent is replaced depends on.
func TestNodeAgent_GracePeriod(t *testing.T) {
	w := workloads(t, objects(t, "default"))["node"]
	drain := flag(t, w, "drain")
	if drain != domainctrl.DefaultDrainWithin.String() && drain != "5m" {
		t.Errorf("--drain is %s: adapt this test", drain)
	}
	const ending = 60 // refdaemon's endGrace, in seconds
	if got, least := *w.pod.Spec.TerminationGracePeriodSeconds, int64(domainctrl.DefaultDrainWithin.Seconds())+ending; got <= least {
		t.Errorf("the grace period is %d s, want more than %d s", got, least)
	}
}

// flag is the value of an argument.
func flag(t *testing.T, w *workload, name string) string {
	t.Helper()
	for _, arg := range w.container().Args {
		if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
			return value
		}
	}
	t.Fatalf("%s has no --%s", w.name, name)
	return ""
}

// refdaemon builds the daemon, without libvirt.
func refdaemon(t *testing.T) string {
	t.Helper()
	rigtest.Need(t)
	binary := filepath.Join(t.TempDir(), "refdaemon")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "github.com/virtloom/virtloom/refdaemon")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build refdaemon: %v\n%s", err, out)
	}
	return binary
}

// TestDaemons_AcceptArguments runs them as their Pods would, up to where they look for the cluster: every flag is
// known and every value makes sense. One that does not is exit code 2.
func TestDaemons_AcceptArguments(t *testing.T) {
	binary := refdaemon(t)
	values := strings.NewReplacer("$(NODE_NAME)", "node-1", "$(POD_IP)", "192.0.2.1")
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		for name, w := range workloads(t, all) {
			args := []string{}
			for _, arg := range w.container().Args {
				args = append(args, values.Replace(arg))
			}
			if len(w.container().Command) > 0 || args[0] != name {
				t.Errorf("%s: command %v, arguments %v; the image says what runs", name, w.container().Command, args)
			}
			args = append(args, "--kubeconfig="+filepath.Join(t.TempDir(), "none"))
			out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "connect to the cluster") {
				t.Errorf("%s %v: %v\n%s", name, args, err, out)
			}
		}
	})
}

// TestArguments_VariablesDefined finds $(NAMES) that Kubernetes would pass unexpanded.
func TestArguments_VariablesDefined(t *testing.T) {
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		for name, w := range workloads(t, all) {
			text := strings.Join(w.container().Args, " ")
			for _, e := range w.container().Env {
				text = strings.ReplaceAll(text, "$("+e.Name+")", "")
			}
			if strings.Contains(text, "$(") {
				t.Errorf("%s: %s", name, text)
			}
		}
	})
}

// TestImages_Buildable compares with what the Containerfile makes.
func TestImages_Buildable(t *testing.T) {
	text, err := os.ReadFile("../Containerfile")
	must(t, err)
	for name, w := range workloads(t, objects(t, "default")) {
		if !strings.Contains(string(text), "\nFROM scratch AS "+name+"\n") || !strings.Contains(string(text), "COPY "+name+"/ /") {
			t.Errorf("the Containerfile makes no image %s", name)
		}
		if want := "localhost/virtloom-" + name + ":dev"; w.container().Image != want {
			t.Errorf("%s runs %s, want %s", name, w.container().Image, want)
		}
	}
	all := workloads(t, objects(t, "default"))
	launcher := flag(t, all["controller"], "launcher-image")
	if got := all["node"].pod.Spec.Containers[1].Image; got != launcher {
		t.Errorf("launchers run %s, but their node is judged by %s", launcher, got)
	}
}
