// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/template"
)

// exceptions are the files of the corpus whose Pods violate a Pod Security level although they do not run as root, with the
// reason. All others are accepted in a namespace of that level.
var exceptions = map[string]map[string]string{
	"baseline": {
		"cluster-settings": "the cluster's configuration sets an SELinux type on all launchers",
		"migration":        "the same",
		"host-disk":        "the VMI requests a folder of the node",
		"probe-http":       "the VMI requests a probe of another host",
		"probe-tcp":        "the same",
	},
	"restricted": {
		"cluster-settings":  "the cluster's configuration sets an SELinux type on all launchers",
		"migration":         "the same",
		"host-disk":         "the VMI requests a folder of the node",
		"probe-http":        "the VMI requests a probe of another host",
		"probe-tcp":         "the same",
		"export":            "no launcher: KubeVirt's exporter runs as its image says",
		"export-long-name":  "the same",
		"hotplug":           "the Pod that has a volume provisioned runs as root, as KubeVirt's does, and ends at once",
		"hotplug-migration": "the same",
	},
}

// TestRender_AcceptedByAPIServer sends each golden Pod and each Pod of the corpus to a real API server, as a dry run, in a
// namespace of Pod Security level privileged, and those without root in one of each of the other levels as well.
func TestRender_AcceptedByAPIServer(t *testing.T) {
	s := newAPIServer(t)
	for name, render := range map[string]func() (*corev1.Pod, error){
		"r0":     func() (*corev1.Pod, error) { return template.Default().Launcher(input(newVMI())) },
		"r1":     func() (*corev1.Pod, error) { return template.Default().Launcher(input(read(t, "r1.vmi.yaml"))) },
		"rich":   func() (*corev1.Pod, error) { return template.Default().Launcher(richInput(t)) },
		"target": func() (*corev1.Pod, error) { return template.Default().MigrationTarget(targetInput(t)) },
		"r3":     func() (*corev1.Pod, error) { return template.Default().HotplugAttachment(plugInput(t, "v1")) },
		"attachment of everything": func() (*corev1.Pod, error) {
			return template.Default().HotplugAttachment(plugInput(t, "v1", "v2", "v3", "v4"))
		},
		"trigger":       func() (*corev1.Pod, error) { return template.Default().HotplugTrigger(plugInput(t, "v1")) },
		"block trigger": func() (*corev1.Pod, error) { return template.Default().HotplugTrigger(plugInput(t, "v2")) },
		"exporter":      func() (*corev1.Pod, error) { return template.Default().Exporter(exportInput()) },
		"export server": func() (*corev1.Pod, error) {
			return template.Default().Exporter(exportInput(serving(
				exportedClaim("disk", corev1.PersistentVolumeBlock, nil), exportedClaim("token", corev1.PersistentVolumeFilesystem, nil),
			)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := render()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.dryRun(t, pod, "privileged"); err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
	needed := map[string]map[string]bool{"baseline": {}, "restricted": {}}
	for _, p := range corpus(t) {
		t.Run(p.name, func(t *testing.T) {
			pod, err := p.render()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.dryRun(t, pod, "privileged"); err != nil {
				t.Errorf("refused: %v", err)
			}
			if p.in.VMI != nil && p.in.VMI.Status.RuntimeUser == 0 {
				return
			}
			for level, excused := range exceptions {
				switch err := s.dryRun(t, pod, level); {
				case err != nil && excused[p.file] == "":
					t.Errorf("refused under level %s: %v", level, err)
				case err != nil:
					needed[level][p.file] = true
				}
			}
		})
	}
	for level, excused := range exceptions {
		for file, reason := range excused {
			if !needed[level][file] && !t.Failed() {
				t.Errorf("all Pods of %s are accepted under level %s, but exceptions say: %s", file, level, reason)
			}
		}
	}
}

// notOurs are rejections of mutants that the renderer cannot foresee, by a part of the message, with the reason.
var notOurs = map[string]string{
	"is not positive integer multiple of hugepages": "KubeVirt renders VMIs whose memory is no whole number of pages (case J of the specification)",
	"RuntimeClass": "the class is the cluster's and not the VMI's; KubeVirt copies any name (case 32 of the specification)",
}

// mutants is the number of mutated inputs. The renderer rejects most of them.
const mutants = 1000

// TestRender_MutantsAcceptedByAPIServer sends Pods rendered from mutated inputs of the corpus to a real API server, which
// must accept them.
func TestRender_MutantsAcceptedByAPIServer(t *testing.T) {
	s := newAPIServer(t)
	pods := corpus(t)
	rendered, refused := 0, map[string]int{}
	for i := range mutants {
		rng := rand.New(rand.NewPCG(uint64(i), 42))
		p := mutant(&mutator{choices: randomBytes(rng, 3+i%16)}, pods)
		pod, err := p.render()
		if err != nil {
			continue
		}
		rendered++
		if err := s.dryRun(t, pod, "privileged"); err != nil {
			excuse := excuseFor(err)
			if refused[excuse]++; excuse == "" {
				t.Errorf("mutant %d of %s: %v", i, p.name, err)
			}
		}
	}
	t.Logf("%d of %d mutants were rendered, of which the API server rejected %v", rendered, mutants, refused)
	for part, reason := range notOurs {
		if refused[part] == 0 {
			t.Errorf("no mutant is rejected for %q any more, but notOurs has: %s", part, reason)
		}
	}
	if rendered < mutants/5 {
		t.Errorf("only %d of %d mutants were rendered: changes are too wild", rendered, mutants)
	}
}

// excuseFor returns the key of notOurs for a rejection.
func excuseFor(err error) string {
	for part := range notOurs {
		if strings.Contains(err.Error(), part) {
			return part
		}
	}
	return ""
}

// apiServer is a control plane for dry runs. It creates the objects that Pods refer to and admission requires.
type apiServer struct {
	kubernetes.Interface
	made map[string]bool
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	c, err := kubernetes.NewForConfig(rigtest.New(t).Config("template-test"))
	if err != nil {
		t.Fatal(err)
	}
	return &apiServer{Interface: c, made: map[string]bool{}}
}

// dryRun creates a Pod as a dry run in a namespace of a Pod Security level.
func (s *apiServer) dryRun(t *testing.T, pod *corev1.Pod, level string) error {
	t.Helper()
	pod = pod.DeepCopy()
	pod.Namespace = strings.TrimRight(pod.Namespace[:min(len(pod.Namespace), 50)], "-") + "-" + level
	s.prepare(t, pod, level)
	var refusal error
	err := rigtest.Poll(t.Context(), time.Minute, func(ctx context.Context) (bool, error) {
		_, refusal = s.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
		})
		return !s.unseen(pod, refusal), nil
	})
	return cmp.Or(refusal, err)
}

// unseen reports whether a Pod was rejected because admission does not know its existing priority class yet.
func (s *apiServer) unseen(pod *corev1.Pod, refusal error) bool {
	return s.made["priority class "+pod.Spec.PriorityClassName] && apierrors.IsForbidden(refusal) &&
		strings.Contains(refusal.Error(), "no PriorityClass with name")
}

func (s *apiServer) prepare(t *testing.T, pod *corev1.Pod, level string) {
	t.Helper()
	ctx, options := t.Context(), metav1.CreateOptions{}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	s.once(t, "namespace "+pod.Namespace, func() (err error) {
		namespace := meta(pod.Namespace)
		namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": level}
		_, err = s.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: namespace}, options)
		return err
	})
	for _, account := range []string{"default", pod.Spec.ServiceAccountName} {
		if account == "" {
			continue
		}
		s.once(t, "service account "+pod.Namespace+"/"+account, func() (err error) {
			_, err = s.CoreV1().ServiceAccounts(pod.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta(account)}, options)
			return err
		})
	}
	if class := pod.Spec.PriorityClassName; class != "" {
		s.once(t, "priority class "+class, func() (err error) {
			_, err = s.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: meta(class), Value: 1000}, options)
			return err
		})
	}
	if class := pod.Spec.RuntimeClassName; class != nil {
		s.once(t, "runtime class "+*class, func() (err error) {
			_, err = s.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: meta(*class), Handler: "kata"}, options)
			return err
		})
	}
}

// once creates an object unless it exists.
func (s *apiServer) once(t *testing.T, what string, create func() error) {
	t.Helper()
	if s.made[what] {
		return
	}
	if err := create(); err != nil && !apierrors.IsAlreadyExists(err) {
		if apierrors.IsInvalid(err) {
			return // the name is invalid, and the Pod will be rejected for it
		}
		t.Fatalf("%s: %v", what, err)
	}
	s.made[what] = true
}
