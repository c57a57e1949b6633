// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

type write = func(*render.Draft)

// draw renders with stages of the given writes, named first, second and so on; the last one overrides the given fields.
func draw(t *testing.T, overrides []string, writes ...write) (*render.Explanation, error) {
	t.Helper()
	names := []string{"first", "second", "third", "fourth"}
	var stages []render.Stage
	for i, w := range writes {
		stages = append(stages, stage(names[i], w))
	}
	stages[len(stages)-1].Overrides = overrides
	r, err := render.NewRenderer(stages...)
	if err != nil {
		t.Fatal(err)
	}
	return r.Explain(render.LauncherPod, web())
}

func mustDraw(t *testing.T, overrides []string, writes ...write) *render.Explanation {
	t.Helper()
	e, err := draw(t, overrides, writes...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func boxed(c corev1.Container) write {
	c.Name = "box"
	return func(d *render.Draft) { d.AddContainer(c) }
}

func nothing(*corev1.Pod) {}

func setting(path string) write { return func(d *render.Draft) { d.Set(path, nothing) } }

// TestSetters_OneOwner checks that a stage must not change a field of another stage without declaring it.
func TestSetters_OneOwner(t *testing.T) {
	box := boxed(corev1.Container{Image: "i"})
	q := resource.MustParse
	for name, tc := range map[string]struct {
		first, second write
		field         string
	}{
		"Label":        {func(d *render.Draft) { d.Label("a", "1") }, func(d *render.Draft) { d.Label("a", "2") }, "metadata.labels[a]"},
		"Annotation":   {func(d *render.Draft) { d.Annotation("a", "1") }, func(d *render.Draft) { d.Annotation("a", "2") }, "metadata.annotations[a]"},
		"NodeSelector": {func(d *render.Draft) { d.NodeSelector("a", "1") }, func(d *render.Draft) { d.NodeSelector("a", "2") }, "spec.nodeSelector[a]"},
		"Drop":         {func(d *render.Draft) { d.Label("a", "1") }, func(d *render.Draft) { d.Drop("metadata.labels[a]") }, "metadata.labels[a]"},
		"Volume": {func(d *render.Draft) { d.EmptyDir("a") }, func(d *render.Draft) {
			d.Volume(corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		}, "spec.volumes[a]"},
		"ResourceClaim": {func(d *render.Draft) { d.ResourceClaim(corev1.PodResourceClaim{Name: "a"}) }, func(d *render.Draft) {
			d.ResourceClaim(corev1.PodResourceClaim{Name: "a", ResourceClaimName: new("b")})
		}, "spec.resourceClaims[a]"},
		"Toleration": {func(d *render.Draft) { d.Toleration(corev1.Toleration{Key: "a", Effect: "NoExecute"}) }, func(d *render.Draft) {
			d.Toleration(corev1.Toleration{Key: "a", Effect: "NoExecute", TolerationSeconds: new(int64(1))})
		}, "spec.tolerations[a:::NoExecute]"},
		"Container": {box, boxed(corev1.Container{Image: "j"}), "spec.containers[box].image"},
		"Mount": {func(d *render.Draft) { d.Container("box").Mount(corev1.VolumeMount{Name: "a", MountPath: "/m"}) }, func(d *render.Draft) {
			d.Container("box").Mount(corev1.VolumeMount{Name: "b", MountPath: "/m"})
		}, "spec.containers[box].volumeMounts[/m]"},
		"Device": {func(d *render.Draft) { d.Container("box").Device(corev1.VolumeDevice{Name: "a", DevicePath: "/d"}) }, func(d *render.Draft) {
			d.Container("box").Device(corev1.VolumeDevice{Name: "b", DevicePath: "/d"})
		}, "spec.containers[box].volumeDevices[/d]"},
		"Env": {func(d *render.Draft) { d.Container("box").Env(corev1.EnvVar{Name: "A", Value: "1"}) }, func(d *render.Draft) {
			d.Container("box").Env(corev1.EnvVar{Name: "A", Value: "2"})
		}, "spec.containers[box].env[A]"},
		"Port": {func(d *render.Draft) { d.Container("box").Port(corev1.ContainerPort{ContainerPort: 1}) }, func(d *render.Draft) {
			d.Container("box").Port(corev1.ContainerPort{ContainerPort: 1, HostPort: 1})
		}, "spec.containers[box].ports[1//]"},
		"Arg":     {func(d *render.Draft) { d.Container("box").Arg("--a", "1") }, func(d *render.Draft) { d.Container("box").Arg("--a", "2") }, "spec.containers[box].args[--a]"},
		"Request": {func(d *render.Draft) { d.Container("box").Request("cpu", q("1")) }, func(d *render.Draft) { d.Container("box").Request("cpu", q("2")) }, "spec.containers[box].resources.requests[cpu]"},
		"Limit":   {func(d *render.Draft) { d.Container("box").Limit("cpu", q("1")) }, func(d *render.Draft) { d.Container("box").Limit("cpu", q("2")) }, "spec.containers[box].resources.limits[cpu]"},
		"Set":     {setting("spec.hostname"), setting("spec.hostname"), "spec.hostname"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := draw(t, nil, box, tc.first, tc.second)
			wantError(t, err, tc.field, render.ErrFieldOwned)
			e := mustDraw(t, []string{tc.field, "spec.containers[box]"}, box, tc.first, tc.second)
			if got := originAt(t, e, tc.field); got.Stage != "third" || got.Overrode == "" {
				t.Errorf("with an override: %v", got)
			}
		})
	}
}

// TestSetters_WholesAndParts checks conflicts between a field and its parts, in either order.
func TestSetters_WholesAndParts(t *testing.T) {
	box := boxed(corev1.Container{Image: "i", SecurityContext: &corev1.SecurityContext{}, Args: []string{"--own"}})
	env := func(d *render.Draft) { d.Container("box").Env(corev1.EnvVar{Name: "A"}) }
	request := func(d *render.Draft) { d.Container("box").Request("cpu", resource.MustParse("1")) }
	for name, tc := range map[string]struct {
		first, second write
		field         string
	}{
		"part, then security context":  {setting("spec.securityContext.runAsUser"), setting("spec.securityContext"), "spec.securityContext.runAsUser"},
		"security context, then part":  {setting("spec.securityContext"), setting("spec.securityContext.runAsUser"), "spec.securityContext.runAsUser"},
		"deep part":                    {setting("spec.securityContext"), setting("spec.securityContext.seLinuxOptions.level"), "spec.securityContext.seLinuxOptions.level"},
		"label, then all labels":       {func(d *render.Draft) { d.Label("a", "b") }, setting("metadata.labels"), "metadata.labels[a]"},
		"all labels, then a label":     {setting("metadata.labels"), func(d *render.Draft) { d.Label("a", "b") }, "metadata.labels[a]"},
		"volume, then the spec":        {func(d *render.Draft) { d.EmptyDir("a") }, setting("spec.volumes"), "spec.volumes[a]"},
		"the metadata, then a label":   {setting("metadata"), func(d *render.Draft) { d.Label("a", "b") }, "metadata.labels[a]"},
		"volume, then its source":      {func(d *render.Draft) { d.EmptyDir("a") }, setting("spec.volumes[a].emptyDir.sizeLimit"), "spec.volumes[a]"},
		"env, then all env":            {env, setting("spec.containers[box].env"), "spec.containers[box].env[A]"},
		"all env, then env":            {setting("spec.containers[box].env"), env, "spec.containers[box].env[A]"},
		"env, then its value":          {env, setting("spec.containers[box].env[A].value"), "spec.containers[box].env[A]"},
		"arg, then all args":           {func(d *render.Draft) { d.Container("box").Arg("--a") }, setting("spec.containers[box].args"), "spec.containers[box].args[--a]"},
		"all env, then the container":  {setting("spec.containers[box].env"), setting("spec.containers[box]"), "spec.containers[box].args[--own]"},
		"request, then resources":      {request, setting("spec.containers[box].resources"), "spec.containers[box].resources.requests[cpu]"},
		"resources, then request":      {setting("spec.containers[box].resources"), request, "spec.containers[box].resources.requests[cpu]"},
		"resources, then its requests": {setting("spec.containers[box].resources"), setting("spec.containers[box].resources.requests"), "spec.containers[box].resources.requests"},
		"context it came with":         {func(*render.Draft) {}, setting("spec.containers[box].securityContext.runAsUser"), "spec.containers[box].securityContext.runAsUser"},
		"wishes, then the affinity":    {func(d *render.Draft) { d.Affinity().AvoidPods(corev1.PodAffinityTerm{TopologyKey: "z"}) }, setting("spec.affinity"), "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := draw(t, nil, func(d *render.Draft) { box(d); tc.first(d) }, tc.second)
			wantError(t, err, tc.field, render.ErrFieldOwned)
		})
	}
	t.Run("a whole that takes over its parts owns them", func(t *testing.T) {
		e := mustDraw(t, []string{"spec.containers[box].env*"}, box, env, setting("spec.containers[box].env"))
		for _, f := range e.Fields {
			if strings.HasPrefix(f.Path, "spec.containers[box].env") && (f.Stage != "third" || f.Path != "spec.containers[box].env") {
				t.Errorf("still there: %v", f)
			}
		}
	})
	t.Run("a part that is taken over names the whole's owner", func(t *testing.T) {
		e := mustDraw(t, []string{"spec.securityContext.runAsUser"}, setting("spec.securityContext"), setting("spec.securityContext.runAsUser"))
		if got, err := e.At("spec.securityContext.runAsUser"); err != nil || got[0].Overrode != "first" || got[0].Stage != "second" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("one stage may write both", func(t *testing.T) {
		mustDraw(t, nil, func(d *render.Draft) {
			setting("spec.securityContext.runAsUser")(d)
			setting("spec.securityContext")(d)
			setting("spec.securityContext.fsGroup")(d)
		})
	})
}

// TestSet_PathForms checks that another form of a path cannot bypass the owner of the field.
func TestSet_PathForms(t *testing.T) {
	for _, path := range []string{
		"", ".spec.hostname", "spec.hostname.", "spec.containers[0].image", "spec.containers.box.image", "spec.containers[box",
		"spec.containers[box].env[0]", "spec.containers[box].env.A", "spec.containers[box].resources.requests.cpu",
		"spec.volumes[0]", "metadata.labels.a", "spec.nodeSelector.a", "spec.tolerations[0]", "spec.containers[]",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := draw(t, []string{"*"}, boxed(corev1.Container{}), setting(path))
			wantError(t, err, path, render.ErrInvalid)
		})
	}
	e := mustDraw(t, nil, func(d *render.Draft) {
		d.Label("0", "a")
		d.EmptyDir("0")
		d.Set("spec.volumes[0]", nothing)
		d.Drop("metadata.labels[0]")
	})
	if len(e.Pod.Labels) > 0 {
		t.Error("a label may be named 0")
	}
}

func TestDrop_KeysOnly(t *testing.T) {
	for _, path := range []string{"spec.hostname", "spec.volumes[a]", "metadata.labels", "metadata.labels[a].b", "spec.containers[box]"} {
		_, err := draw(t, []string{"*"}, func(d *render.Draft) { d.EmptyDir("a"); d.Label("a", "b") }, func(d *render.Draft) { d.Drop(path) })
		wantError(t, err, path, render.ErrInvalid)
	}
	e := mustDraw(t, []string{"metadata.annotations[*"},
		func(d *render.Draft) { d.Annotation("a", "1"); d.Annotation("b", "1") },
		func(d *render.Draft) { d.Drop("metadata.annotations[a]"); d.Drop("metadata.annotations[missing]") })
	if diff := cmp.Diff(map[string]string{"b": "1"}, e.Pod.Annotations); diff != "" {
		t.Error(diff)
	}
	t.Run("it stays dropped", func(t *testing.T) {
		_, err := draw(t, nil, func(d *render.Draft) { d.Label("a", "1"); d.Drop("metadata.labels[a]") }, func(d *render.Draft) { d.Label("a", "1") })
		wantError(t, err, "metadata.labels[a]", render.ErrFieldOwned)
	})
}

func TestArg_Replaced(t *testing.T) {
	fill := func(d *render.Draft) {
		boxed(corev1.Container{})(d)
		d.Container("box").Arg("--a", "1", "2")
		d.Container("box").Arg("--flag")
		d.Container("box").Arg("--last", "-x")
	}
	for name, tc := range map[string]struct {
		write write
		want  string
	}{
		"more values":  {func(d *render.Draft) { d.Container("box").Arg("--a", "3", "4", "5") }, "--a 3 4 5 --flag --last -x"},
		"no values":    {func(d *render.Draft) { d.Container("box").Arg("--a") }, "--a --flag --last -x"},
		"value added":  {func(d *render.Draft) { d.Container("box").Arg("--flag", "on") }, "--a 1 2 --flag on --last -x"},
		"last of all":  {func(d *render.Draft) { d.Container("box").Arg("--last", "y") }, "--a 1 2 --flag --last y"},
		"empty value":  {func(d *render.Draft) { d.Container("box").Arg("--a", "") }, "--a  --flag --last -x"},
		"new argument": {func(d *render.Draft) { d.Container("box").Arg("--new", "1") }, "--a 1 2 --flag --last -x --new 1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := mustDraw(t, []string{"spec.containers[box].args[*"}, fill, tc.write)
			if got := strings.Join(e.Pod.Spec.Containers[0].Args, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	_, err := draw(t, nil, boxed(corev1.Container{}), func(d *render.Draft) { d.Container("box").Arg("--a", "--allow-emulation") })
	wantError(t, err, "spec.containers[box].args[--a]", render.ErrInvalid)
}

func TestContainer_DuplicateNames(t *testing.T) {
	_, err := draw(t, nil, boxed(corev1.Container{}), func(d *render.Draft) { d.AddInitContainer(corev1.Container{Name: "box"}) })
	wantError(t, err, "spec.initContainers[box]", render.ErrFieldOwned)
	_, err = draw(t, nil, func(d *render.Draft) { d.From("spec.volumes[0]").AddInitContainer(corev1.Container{Name: "box"}) },
		func(d *render.Draft) { d.From("spec.volumes[1]").AddContainer(corev1.Container{Name: "box"}) })
	wantError(t, err, "spec.containers[box]", render.ErrInvalid)

	same := boxed(corev1.Container{Image: "i"})
	if got := len(mustDraw(t, nil, same, same).Pod.Spec.Containers); got != 1 {
		t.Errorf("the same container twice makes %d", got)
	}
	env := func(d *render.Draft) { d.Container("box").Env(corev1.EnvVar{Name: "A"}) }
	_, err = draw(t, []string{"spec.containers[box]", "spec.containers[box].image"}, same, env, boxed(corev1.Container{Image: "j"}))
	wantError(t, err, "spec.containers[box].env[A]", render.ErrFieldOwned)
	e := mustDraw(t, []string{"spec.containers[box]*"}, same, env, boxed(corev1.Container{Image: "j"}))
	if _, err := e.At("spec.containers[box].env[A]"); err == nil {
		t.Error("a variable that went with the replaced container is explained")
	}
}

func TestDraft_CollidingVMINames(t *testing.T) {
	both := func(w func(render.Draft)) []write {
		return []write{
			func(d *render.Draft) { boxed(corev1.Container{})(d); w(d.From("spec.volumes[0]")) },
			func(d *render.Draft) { w(d.From("spec.volumes[1]")) },
		}
	}
	n := 0
	_, err := draw(t, nil, both(func(d render.Draft) {
		n++
		d.Container("box").Mount(corev1.VolumeMount{Name: fmt.Sprint("v", n), MountPath: "/m"})
	})...)
	wantError(t, err, "spec.containers[box].volumeMounts[/m]", render.ErrInvalid)
	_, err = draw(t, nil, both(func(d render.Draft) { d.Set("spec.hostname", nothing) })...)
	wantError(t, err, "spec.hostname", render.ErrFieldOwned)
	_, err = draw(t, nil, func(d *render.Draft) {
		d.EmptyDir("a")
		d.Volume(corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}})
	})
	wantError(t, err, "spec.volumes[a]", render.ErrInvalid)
}

// parted is an error of several causes with its own text.
type parted struct{ causes []error }

func (p parted) Error() string   { return "parted" }
func (p parted) Unwrap() []error { return p.causes }

func TestStage_ErrorsPreserved(t *testing.T) {
	a, b := errors.New("cause a"), errors.New("cause b")
	fault := &render.Error{Field: "spec.x", Reason: "is invalid", Remedy: "fix it", Err: render.ErrMissingFact}
	for name, tc := range map[string]struct {
		err  error
		is   []error
		text []string
	}{
		"two causes in one text": {fmt.Errorf("both %w and %w", a, b), []error{a, b}, []string{"both cause a and cause b"}},
		"joined":                 {errors.Join(a, fault), []error{a, render.ErrMissingFact}, []string{"cause a", "spec.x: is invalid"}},
		"wrapped fault":          {fmt.Errorf("generator: %w: %w", a, fault), []error{a, render.ErrMissingFact}, []string{"generator: cause a: ", "spec.x", "fix it"}},
		"no causes":              {parted{}, nil, []string{"parted"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := render.NewRenderer(render.Stage{Name: "mine", Apply: func(*render.Draft) error { return tc.err }})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Launcher(web())
			var e *render.Error
			if !errors.As(err, &e) || e.Stage != "mine" || !strings.Contains(e.Object, "web") {
				t.Fatalf("got %v", err)
			}
			for _, cause := range tc.is {
				if !errors.Is(err, cause) {
					t.Errorf("%v is lost from %v", cause, err)
				}
			}
			for _, text := range tc.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is lost from %q", text, err)
				}
			}
		})
	}
}

// TestAffinity_AddsUp checks that terms of several stages add up, and that the VMI that stages read stays unchanged.
func TestAffinity_AddsUp(t *testing.T) {
	avoid := func(d *render.Draft) { d.Affinity().AvoidPods(corev1.PodAffinityTerm{TopologyKey: "zone"}) }
	require := func(key string) write {
		return func(d *render.Draft) {
			d.Affinity().RequireNode(corev1.NodeSelectorRequirement{Key: key, Operator: "Exists"})
		}
	}
	prefer := func(d *render.Draft) { d.Affinity().PreferNode(corev1.PreferredSchedulingTerm{Weight: 1}) }
	join := func(d *render.Draft) { d.Affinity().JoinPods(corev1.PodAffinityTerm{TopologyKey: "zone"}) }
	all := func(d *render.Draft) { avoid(d); prefer(d); join(d); require("a")(d) }
	e := mustDraw(t, nil, all, all, require("b"))
	a := e.Pod.Spec.Affinity
	if len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 2 || len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 2 ||
		len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 2 || len(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != 1 {
		t.Errorf("got %v", a)
	}
	for path, want := range map[string]string{
		"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]": "first",
		"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[1]": "second",
		"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[1]":   "second",
		"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]":     "first",
	} {
		if got := originAt(t, e, path); got.Stage != want || got.Overrode != "" {
			t.Errorf("%s: %v, want stage %s", path, got, want)
		}
	}
	empty := mustDraw(t, nil, func(d *render.Draft) {
		d.Set("spec.affinity", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		})
	}, require("a"))
	if got := empty.Pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(got) != 0 {
		t.Errorf("a selector that matches no node got terms: %v", got)
	}

	var seen *corev1.Affinity
	r, err := template.Default().After(template.StageAffinity, stage("reader", func(d *render.Draft) { seen = d.VMI().Spec.Affinity.DeepCopy() }))
	if err != nil {
		t.Fatal(err)
	}
	mine := corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Exists"}},
	}}}}}
	in := web()
	in.VMI.Spec.Affinity = &mine
	if _, err := r.Launcher(in); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&mine, seen); diff != "" {
		t.Errorf("a later stage reads another VMI:\n%s", diff)
	}
}
