// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"
)

// Draft is the Pod being rendered, with the facts it is rendered from. Stages write through its setters, which record
// the stage and the source of every field. A setter that meets a field of another stage changes nothing; the conflict
// ends the stage. A Draft is used by one goroutine.
type Draft struct {
	*rendering
	from  string
	terms []Term
}

// From returns the same Draft; what is written through it is recorded as following from the named field of the VMI or
// fact, such as spec.domain.cpu or Config.ImagePullPolicy. What is written without From counts as a constant of the Pod.
func (d Draft) From(source string) Draft {
	d.from = source
	return d
}

// Terms returns the same Draft; amounts written through it are recorded as the sum of the terms.
func (d Draft) Terms(terms ...Term) Draft {
	d.terms = terms
	return d
}

// rendering is what all Drafts of one Pod share.
type rendering struct {
	kind  PodKind
	input Input // as the caller gave it, Config with defaults
	// vmi is a copy of the input's, so that parts of it may be put into the Pod. It is nil for an exporter.
	vmi       *v1.VirtualMachineInstance
	config    Config
	facts     Facts
	migration *Migration
	export    *exportv1.VirtualMachineExport
	sidecars  []Sidecar

	pod      *corev1.Pod
	stage    *Stage
	ledger   *ledger
	conflict error
	places   places
	// plugged are the names of the volumes that the guest's status says to be hotplugged.
	plugged map[string]bool
	// stock are the names of the stages that are not held to what they say they write.
	stock map[string]bool
}

// stageInput stands for the stage in errors about the input of all stages.
const stageInput = "input"

func newRendering(kind PodKind, in Input) (*rendering, error) {
	if missing := missingInput(kind, in); missing != "" {
		return nil, &Error{
			Stage: stageInput, Object: in.object(kind), Field: missing, Reason: "must be set",
			Remedy: "render from objects read from the API server, with a complete Config", Err: ErrInvalid,
		}
	}
	if err := wrongInput(kind, in); err != nil {
		return nil, err
	}
	in.Config = in.Config.withDefaults()
	d := &rendering{
		kind: kind, input: in, vmi: in.VMI.DeepCopy(), config: in.Config, facts: in.Facts, migration: in.Migration,
		pod:    &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}},
		ledger: newLedger(),
	}
	switch kind {
	case ExporterPod:
		d.vmi, d.migration, d.export = nil, nil, in.Export.Object
	case LauncherPod, TemporaryPod, TriggerPod:
		d.migration = nil
	}
	d.chooseUser()
	d.plugged = pluggedNames(d.vmi)
	// What stages and extensions are given to read agrees with what is rendered.
	d.input.VMI, d.input.Migration = d.vmi, d.migration
	return d, nil
}

// chooseUser makes status.runtimeUser what it may be. Users write it too, and where there is no webhook it is empty: root is a
// launcher's user only where the cluster has gate Root. A target is always given the user that new launchers run as, so that a
// guest started as root can leave it.
func (d *rendering) chooseUser() {
	switch root := d.config.GateEnabled(gateRoot); {
	case d.vmi == nil:
	case !root:
		d.vmi.Status.RuntimeUser = uint64(qemuUser)
	case d.kind == TargetPod:
		d.vmi.Status.RuntimeUser = 0
	}
}

// VMI returns the guest, nil for an exporter. It is a copy of the input that lives as long as the Draft; parts of it may
// be put into the Pod.
func (d *rendering) VMI() *v1.VirtualMachineInstance { return d.vmi }

// Kind returns the kind of Pod that is rendered.
func (d *rendering) Kind() PodKind { return d.kind }

// Input returns everything the Pod is rendered from, with the defaults of Config filled in. It must not be changed.
func (d *rendering) Input() Input { return d.input }

// Config returns the configuration with defaults filled in.
func (d *rendering) Config() Config { return d.config }

// Facts returns the readings given with the input. They must not be changed.
func (d *rendering) Facts() Facts { return d.facts }

// Migration returns the migration whose target is rendered, or beside whose target a hotplug attachment is, else nil. It
// must not be changed.
func (d *rendering) Migration() *Migration { return d.migration }

// Pod returns the Pod as far as it is rendered, for reading. It is a copy; write through the setters.
func (d *rendering) Pod() *corev1.Pod { return d.pod.DeepCopy() }

// Sidecars returns the sidecars that stage hooks asked for, in order. They must not be changed.
func (d *rendering) Sidecars() []Sidecar { return d.sidecars }

// claim makes the current stage the owner of a field, unless another stage owns it or what it is a part of.
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

// claimWhole makes the current stage the owner of a field and of everything below it.
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

// mayReplace tells whether the current stage may take over all of some fields of others.
func (d Draft) mayReplace(fields []field) bool {
	for _, f := range fields {
		if !d.overrides(f.String()) {
			d.owned(f, d.ledger.owners.get(f))
			return false
		}
	}
	return true
}

// owned refuses to write a field that belongs to another stage. Where both values follow from names that the VMI chose, it
// is the VMI that names two things alike.
func (d Draft) owned(f field, owner origin) {
	path := f.String()
	if f.isElement() && owner.hasVMISource() && (origin{from: d.from}).hasVMISource() {
		d.fail(invalid(path, fmt.Sprintf("both %s and %s lead to it", owner.from, d.from), "rename one of them"))
		return
	}
	d.fail(&Error{
		Field:  path,
		Reason: fmt.Sprintf("stage %q sets what stage %q has set", d.stage.Name, owner.stage),
		Remedy: "declare the field in Stage.Overrides, or replace stage " + owner.stage, Err: ErrFieldOwned,
	})
}

// fail notes the first fault of the current stage.
func (d *rendering) fail(err error) {
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

// locate fills stage and object into the errors of the current stage.
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
		// Somebody added to it what must not be lost.
		located.Reason = strings.ReplaceAll(text, inner.Error(), inner.Reason)
		located.Err = &wrapped{class: inner.Err, all: err}
	}
	located.Stage, located.Object = d.stage.Name, d.input.object(d.kind)
	return &located
}

// joined are the parts of errors.Join. Other errors of several parts have a text of their own.
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

// wrapped reads as the class of an Error and has all errors around it as cause.
type wrapped struct{ class, all error }

// Error is the text of the class alone, as that of the rest is in the reason.
func (w *wrapped) Error() string { return fmt.Sprint(w.class) }

// Unwrap returns all errors around the class.
func (w *wrapped) Unwrap() error { return w.all }
