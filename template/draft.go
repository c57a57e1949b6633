// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Draft is the Pod being rendered, with the facts it is rendered from. Stages write through its setters, which record
// the owner of every field. A setter that meets a field of another stage changes nothing; the conflict ends the stage.
// A Draft is used by one goroutine.
type Draft struct {
	vmi       *v1.VirtualMachineInstance
	config    Config
	facts     Facts
	migration *Migration

	pod      *corev1.Pod
	stage    Stage
	owners   map[string]string
	conflict error
}

func newDraft(in Input) (*Draft, error) {
	if missing := missingInput(in); missing != "" {
		return nil, &Error{
			Stage: "input", Object: objectName(in.VMI), Field: missing, Reason: "must be set",
			Remedy: "render from an object read from the API server, with a complete Config", Err: ErrInvalid,
		}
	}
	d := &Draft{
		vmi: in.VMI.DeepCopy(), config: in.Config.withDefaults(), facts: in.Facts, migration: in.Migration,
		pod:    &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}},
		owners: make(map[string]string, 128),
	}
	if d.migration != nil {
		// A target is always given the user that new launchers run as, so that a guest started as root can leave it.
		d.vmi.Status.RuntimeUser = uint64(qemuUser)
		if d.config.GateEnabled(gateRoot) {
			d.vmi.Status.RuntimeUser = 0
		}
	}
	return d, nil
}

// missingInput names the first input without which no Pod can be named or run.
func missingInput(in Input) string {
	switch {
	case in.VMI == nil:
		return "Input.VMI"
	case in.VMI.Name == "":
		return "metadata.name"
	case in.VMI.Namespace == "":
		return "metadata.namespace"
	case in.VMI.UID == "":
		return "metadata.uid"
	case in.Config.LauncherImage == "":
		return "Config.LauncherImage"
	case in.Migration == nil:
		return ""
	case in.Migration.UID == "", in.Migration.Name == "":
		return "Input.Migration.UID and Name"
	case in.Migration.SourcePod == nil:
		return "Input.Migration.SourcePod"
	default:
		return ""
	}
}

func objectName(vmi *v1.VirtualMachineInstance) string {
	if vmi == nil {
		return "VirtualMachineInstance"
	}
	return "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name
}

// VMI returns the guest. It is a copy of the input that lives as long as the Draft; parts of it may be put into the Pod.
func (d *Draft) VMI() *v1.VirtualMachineInstance { return d.vmi }

// Config returns the configuration with defaults filled in.
func (d *Draft) Config() Config { return d.config }

// Facts returns the readings given with the input. They must not be changed.
func (d *Draft) Facts() Facts { return d.facts }

// Migration returns the migration whose target is rendered, or nil for a launcher. It must not be changed.
func (d *Draft) Migration() *Migration { return d.migration }

// Pod returns the Pod as far as it is rendered, for reading. Write through the setters.
func (d *Draft) Pod() *corev1.Pod { return d.pod }

// claim makes the current stage the owner of a field, unless another stage owns it.
func (d *Draft) claim(path string) bool {
	owner, taken := d.owners[path]
	if taken && owner != d.stage.Name && !d.overrides(path) {
		d.fail(&Error{
			Field:  path,
			Reason: fmt.Sprintf("stage %q sets what stage %q has set", d.stage.Name, owner),
			Remedy: "declare the field in Stage.Overrides, or replace stage " + owner, Err: ErrFieldOwned,
		})
		return false
	}
	d.owners[path] = d.stage.Name
	return true
}

// fail notes the first fault of the current stage.
func (d *Draft) fail(err error) {
	if d.conflict == nil {
		d.conflict = err
	}
}

func (d *Draft) overrides(path string) bool {
	for _, o := range d.stage.Overrides {
		if prefix, ok := strings.CutSuffix(o, "*"); path == o || (ok && strings.HasPrefix(path, prefix)) {
			return true
		}
	}
	return false
}

func (d *Draft) takeConflict() error {
	err := d.conflict
	d.conflict = nil
	return err
}

// locate fills stage and object into the errors of the current stage.
func (d *Draft) locate(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, d.locate(e))
		}
		if len(out) == 1 {
			return out[0]
		}
		return errors.Join(out...)
	}
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Reason: "stage failed", Err: err}
	}
	located := *e
	located.Stage, located.Object = d.stage.Name, objectName(d.vmi)
	return &located
}
