// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// Draft is the Pod being rendered, with its input. Stages write through its setters, which record the stage and the source
// of every field. A setter that meets a field of another stage changes nothing, and the stage fails with the conflict. A
// Draft must not be used concurrently.
type Draft struct {
	*rendering
	from  string
	terms []Term
}

// From returns the same Draft with a source: fields written through it are recorded as derived from the named field of the
// VMI or fact, such as spec.domain.cpu or Config.ImagePullPolicy. Fields written without From are constants.
func (d Draft) From(source string) Draft {
	d.from = source
	return d
}

// Terms returns the same Draft; amounts written through it are recorded as the sum of the terms.
func (d Draft) Terms(terms ...Term) Draft {
	d.terms = terms
	return d
}

// rendering is shared by all Drafts of one Pod.
type rendering struct {
	kind PodKind
	// input is that of the caller, with the defaults of Config, a copy of the VMI, so that parts of it may be put into the Pod,
	// and without what the kind of Pod ignores.
	input    Input
	sidecars []Sidecar

	pod      *corev1.Pod
	stage    *Stage
	ledger   *ledger
	conflict error
	places   places
}

// stageInput stands for the stage in errors about the input.
const stageInput = "input"

func newRendering(kind PodKind, in Input) (*rendering, error) {
	if missing := missingInput(kind, in); missing != "" {
		return nil, &Error{
			Stage: stageInput, Object: in.Object(kind), Field: missing, Reason: "must be set",
			Remedy: "render from objects read from the API server, with a complete Config", Err: ErrInvalid,
		}
	}
	if err := wrongInput(kind, in); err != nil {
		return nil, err
	}
	in.Config, in.VMI = in.Config.WithDefaults(), in.VMI.DeepCopy()
	// The input that stages and extensions read is consistent with what is rendered.
	switch kind {
	case ExporterPod:
		in.VMI, in.Migration = nil, nil
	case LauncherPod, TemporaryPod, TriggerPod:
		in.Migration = nil
	}
	d := &rendering{
		kind: kind, input: in,
		pod:    &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}},
		ledger: newLedger(),
	}
	d.chooseUser()
	return d, nil
}

// chooseUser corrects status.runtimeUser, which users can write and which is empty without a webhook: root requires the
// cluster's gate Root. A target always runs as the user of new launchers, so that a VMI started as root can leave it.
func (d *rendering) chooseUser() {
	switch vmi, root := d.input.VMI, d.input.Config.GateEnabled(validate.Root); {
	case vmi == nil:
	case !root:
		vmi.Status.RuntimeUser = uint64(QEMUUser)
	case d.kind == TargetPod:
		vmi.Status.RuntimeUser = 0
	}
}

// VMI returns the VMI, nil for an exporter. It is a copy of the input that lives as long as the Draft; parts of it may be
// put into the Pod.
func (d *rendering) VMI() *v1.VirtualMachineInstance { return d.input.VMI }

// Kind returns the kind of Pod that is rendered.
func (d *rendering) Kind() PodKind { return d.kind }

// Input returns the complete input, with the defaults of Config. It must not be changed.
func (d *rendering) Input() Input { return d.input }

// Config returns the configuration with defaults. It must not be changed.
func (d *rendering) Config() *Config { return &d.input.Config }

// Facts returns the readings given with the input. They must not be changed.
func (d *rendering) Facts() Facts { return d.input.Facts }

// Migration returns the migration whose target, or whose target's hotplug attachment, is rendered, otherwise nil. It must
// not be changed.
func (d *rendering) Migration() *Migration { return d.input.Migration }

// Pod returns a copy of the Pod as rendered so far. Write through the setters.
func (d *rendering) Pod() *corev1.Pod { return d.pod.DeepCopy() }

// View returns the Pod as rendered so far without copying it. It must not be changed.
func (d *rendering) View() *corev1.Pod { return d.pod }

// Sidecars returns the sidecars that stages have requested, in order. They must not be changed.
func (d *rendering) Sidecars() []Sidecar { return d.sidecars }

// RequestSidecar requests a sidecar, which a later stage renders.
func (d *rendering) RequestSidecar(s Sidecar) { d.sidecars = append(d.sidecars, s) }

// claim makes the current stage the owner of a field, unless another stage owns it or a field that contains it.
func (d Draft) claim(f field) bool {
	stage := d.stage.Name
	place := d.ledger.owners.at(f)
	owner := *place
	o := origin{stage: stage, from: d.from, overrode: owner.overrode}
	around, whole := d.ledger.around(f, stage)
	for _, taken := range [...]struct {
		by origin
		is bool
	}{{around, whole}, {owner, owner.stage != "" && owner.stage != stage}} {
		if !taken.is {
			continue
		}
		if !d.overrides(f.String()) {
			d.owned(f, taken.by)
			return false
		}
		o.overrode = taken.by.stage
	}
	d.ledger.replace(place, f, o, d.terms)
	return true
}

// claimWhole makes the current stage the owner of a field and its parts.
func (d Draft) claimWhole(f field) bool {
	parts := d.ledger.inside(f, d.stage.Name)
	if !d.mayReplace(parts) || !d.claim(f) {
		return false
	}
	d.ledger.whole(f)
	for _, part := range parts {
		d.ledger.replaced(part, f)
	}
	return true
}

// mayReplace reports whether the current stage may take over fields of other stages.
func (d Draft) mayReplace(fields []field) bool {
	for _, f := range fields {
		if !d.overrides(f.String()) {
			d.owned(f, d.ledger.owners.get(f))
			return false
		}
	}
	return true
}

// owned reports a write to a field of another stage. If both values are derived from names in the VMI, the names collide
// and the error is the VMI's.
func (d Draft) owned(f field, owner origin) {
	path := f.String()
	if f.isElement() && owner.hasVMISource() && (origin{from: d.from}).hasVMISource() {
		d.Fail(Invalid(path, fmt.Sprintf("%s and %s collide", owner.from, d.from), "rename one of them"))
		return
	}
	d.Fail(&Error{
		Field:  path,
		Reason: fmt.Sprintf("stage %q must not set a field of stage %q", d.stage.Name, owner.stage),
		Remedy: "declare the field in Stage.Overrides, or replace stage " + owner.stage, Err: ErrFieldOwned,
	})
}

// Fail fails the stage with an error, unless it has failed already. It is for functions that return no error.
func (d *rendering) Fail(err error) {
	if d.conflict == nil {
		d.conflict = err
	}
}

func (d *rendering) overrides(path string) bool {
	for _, o := range d.stage.Overrides {
		if prefix, ok := strings.CutSuffix(o, "*"); path == o || (ok && strings.HasPrefix(path, prefix)) {
			return true
		}
	}
	return false
}

// locate sets stage and object in the errors of the current stage.
func (d *rendering) locate(err error) error {
	if parts := joined(err); len(parts) > 0 {
		out := make([]error, len(parts))
		for i, part := range parts {
			out[i] = d.locate(part)
		}
		if len(out) == 1 {
			return out[0]
		}
		return errors.Join(out...)
	}
	var inner *Error
	typed := errors.As(err, &inner)
	if !typed {
		inner = &Error{Reason: "stage failed", Err: err}
	}
	located := *inner
	if text := err.Error(); typed && text != inner.Error() {
		// Keep the errors that wrap the *Error.
		located.Reason = strings.ReplaceAll(text, inner.Error(), inner.Reason)
		located.Err = &wrapped{class: inner.Err, all: err}
	}
	located.Stage, located.Object = d.stage.Name, d.input.Object(d.kind)
	return &located
}

// joined returns the parts of errors.Join. Other errors with several parts have a text of their own.
func joined(err error) []error {
	parted, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	parts := parted.Unwrap()
	if all := errors.Join(parts...); all == nil || all.Error() != err.Error() {
		return nil
	}
	return parts
}

// wrapped prints as the class of an Error and unwraps to all errors around it.
type wrapped struct{ class, all error }

// Error returns the text of the class only: the reason has the others.
func (w *wrapped) Error() string { return fmt.Sprint(w.class) }

// Unwrap returns all errors around the class.
func (w *wrapped) Unwrap() error { return w.all }
