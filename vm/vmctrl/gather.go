// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// readWithin bounds reads of optional kinds: the cache of a kind that was just removed would never sync.
const readWithin = 10 * time.Second

// rounds bounds how often the objects are read that instance type and preference of one VM turn out to need.
const rounds = 8

// gathered is a snapshot with the additional state for executing a plan.
type gathered struct {
	vm.Snapshot
	owner   expectations.Owner
	verdict expectations.Verdict
	// outdated is true if the cache does not show this controller's last write of the VM: a decision would be rejected.
	outdated bool
	// due is when to check what has no event.
	due time.Time
	// created is the VMI that this pass has created.
	created *v1.VirtualMachineInstance
	// copied is what a missing DataVolume may copy, by its name: what was checked, whatever a DataSource says later.
	copied map[string]*cdiv1.DataVolumeSource
}

// lookAt requests another pass at the time, or earlier.
func (g *gathered) lookAt(at time.Time) {
	if g.due.IsZero() || at.Before(g.due) {
		g.due = at
	}
}

// gatherer reads the snapshot of a VM.
type gatherer struct{ *Reconciler }

// gather reads the input of a decision; nil if the VM does not exist. Unless tracked is set, it has no side effects.
func (r gatherer) gather(ctx context.Context, key types.NamespacedName, tracked bool) (*gathered, error) {
	g := &gathered{}
	g.VM = &v1.VirtualMachine{}
	switch err := r.Client.Get(ctx, key, g.VM); {
	case apierrors.IsNotFound(err):
		if tracked {
			r.Gate.Forget(key)
			r.reported.Over(key)
			r.backlog.Done(key)
		}
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("vmctrl: read VirtualMachine %s: %w", key, err)
	}
	g.owner = expectationsctrl.OwnerOf(g.VM)
	for _, read := range []func(context.Context, *gathered) error{
		r.pending, r.config, r.vmi, r.volumes, r.revisions, r.definitions, r.sources,
	} {
		if err := read(ctx, g); err != nil {
			return nil, err
		}
		if g.outdated {
			break
		}
	}
	return g, nil
}

// pending checks whether the caches show this controller's own writes, and reads overdue ones live. Then it reads the VM
// once more: the first read may predate the observed writes.
func (r gatherer) pending(ctx context.Context, g *gathered) error {
	if r.Gate == nil {
		return nil // an observer
	}
	var err error
	if g.verdict, err = r.Gate.Check(ctx, g.owner); err != nil {
		return fmt.Errorf("vmctrl: %s: %w", g.owner.Key, err)
	}
	for _, p := range g.verdict.Pending {
		g.Pending = append(g.Pending, vm.Write{Verb: verbOf(p.Kind, p.Verb), Name: p.Name})
		g.outdated = g.outdated || p.Kind == vmKind.GroupKind() && p.Needs != "" && p.Problem == expectations.NoProblem
	}
	current := &v1.VirtualMachine{}
	switch err := r.Client.Get(ctx, g.owner.Key, current); {
	case apierrors.IsNotFound(err), err == nil && current.UID != g.VM.UID:
		g.outdated = true // its event follows
		return nil
	case err != nil:
		return fmt.Errorf("vmctrl: read VirtualMachine %s: %w", g.owner.Key, err)
	}
	g.VM = current
	for _, l := range r.Gate.Late(g.owner) {
		// The VM must not be released while its VMI may still appear.
		if g.VM.DeletionTimestamp != nil {
			g.Pending = append(g.Pending, vm.Write{Verb: verbOf(l.Kind, expectations.Create), Name: l.Name})
			g.lookAt(l.Until)
		}
	}
	return nil
}

var (
	vmKind       = v1.VirtualMachineGroupVersionKind
	vmiKind      = v1.VirtualMachineInstanceGroupVersionKind
	revisionKind = appsv1.SchemeGroupVersion.WithKind("ControllerRevision")
	claimKind    = corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
)

// verbs are the actions of a plan by the kind and the verb of their write.
var verbs = map[schema.GroupKind]map[expectations.Verb]vm.Verb{
	vmKind.GroupKind():       {expectations.Update: vm.UpdateVM},
	vmiKind.GroupKind():      {expectations.Create: vm.CreateVMI, expectations.Update: vm.PatchVMI, expectations.Delete: vm.DeleteVMI},
	revisionKind.GroupKind(): {expectations.Create: vm.CreateRevision, expectations.Delete: vm.DeleteRevision},
	dvKind.GroupKind():       {expectations.Create: vm.CreateDataVolume, expectations.Update: vm.AdoptDataVolume},
	claimKind.GroupKind():    {expectations.Update: vm.PatchClaim},
}

func verbOf(kind schema.GroupKind, verb expectations.Verb) vm.Verb { return verbs[kind][verb] }

// config reads the configuration of the cluster.
func (r gatherer) config(ctx context.Context, g *gathered) error {
	kv, err := r.cluster.KubeVirt(ctx)
	if err != nil {
		return err
	}
	g.Config = r.Config.With(kv)
	return nil
}

// vmi reads the VMI of the VM's name.
func (r gatherer) vmi(ctx context.Context, g *gathered) error {
	vmi := &v1.VirtualMachineInstance{}
	found, err := r.find(ctx, g, g.VM.Name, vmi)
	if found {
		g.VMI = vmi
	}
	return err
}

// find reads an object of the VM's namespace from the cache, and reports whether it exists.
func (r gatherer) find(ctx context.Context, g *gathered, name string, into client.Object) (bool, error) {
	switch err := r.Client.Get(ctx, types.NamespacedName{Namespace: g.VM.Namespace, Name: name}, into); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("vmctrl: read %T %s of VirtualMachine %s: %w", into, name, g.owner.Key, err)
	}
	return true, nil
}

// volumes reads the DataVolumes and claims that the VM names.
func (r gatherer) volumes(ctx context.Context, g *gathered) error {
	if err := r.kinds.Know(ctx); err != nil {
		return fmt.Errorf("vmctrl: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	g.DataVolumes, g.Claims = map[string]*cdiv1.DataVolume{}, map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range volumeNames(g.VM) {
		claim := &corev1.PersistentVolumeClaim{}
		if found, err := r.find(ctx, g, name, claim); err != nil {
			return err
		} else if found {
			g.Claims[name] = claim
		}
		if !r.kinds.Serves(dvKind) {
			continue
		}
		dv := &cdiv1.DataVolume{}
		if found, err := r.find(ctx, g, name, dv); err != nil {
			return err
		} else if found {
			g.DataVolumes[name] = dv
		}
	}
	return nil
}

// revisions reads the ControllerRevisions that the VM controls, by index.
func (r gatherer) revisions(ctx context.Context, g *gathered) error {
	var list appsv1.ControllerRevisionList
	err := r.Client.List(ctx, &list, client.InNamespace(g.VM.Namespace), client.MatchingFields{revisionByVM: string(g.VM.UID)})
	if err != nil {
		return fmt.Errorf("vmctrl: list ControllerRevisions of %s: %w", g.owner.Key, err)
	}
	for i := range list.Items {
		g.Revisions = append(g.Revisions, &list.Items[i])
	}
	return nil
}

// definitions reads instance type and preference of the VM, and their revisions, until nothing is missing.
func (r gatherer) definitions(ctx context.Context, g *gathered) error {
	if g.VM.DeletionTimestamp != nil || len(g.Pending) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	g.Objects = instancetype.Objects{}
	for range rounds {
		_, missing, err := instancetype.Sync(g.VM, g.Objects, g.Config.Policy, g.Config.Cluster)
		if err != nil || len(missing) == 0 {
			return nil // the decision finds the same error
		}
		for _, ref := range missing {
			if err := r.definition(ctx, g, ref); err != nil {
				return err
			}
		}
	}
	g.lookAt(r.Clock.Now().Add(lastRetry))
	return nil
}

// definition reads one object that instance type or preference need.
func (r gatherer) definition(ctx context.Context, g *gathered, ref instancetype.Ref) error {
	into := client.Object(&appsv1.ControllerRevision{})
	if prototype, is := definitions[ref.Kind]; is {
		if !r.kinds.Serves(v1beta1.SchemeGroupVersion.WithKind(ref.Kind)) {
			g.Objects[ref] = nil
			return nil
		}
		into, _ = prototype.DeepCopyObject().(client.Object)
	}
	switch err := r.Client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, into); {
	case apierrors.IsNotFound(err):
		g.Objects[ref] = nil
	case err != nil:
		return fmt.Errorf("vmctrl: read %s of VirtualMachine %s: %w", ref, g.owner.Key, err)
	default:
		g.Objects[ref] = into
	}
	return nil
}
