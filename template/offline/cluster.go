// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// Cluster holds the manifests of a cluster with one VMI.
type Cluster struct {
	// VMI is the VMI; nil if there is none, which suffices for an exporter.
	VMI *v1.VirtualMachineInstance
	// VM is the VirtualMachine, of which Start makes the VMI; nil if there is none.
	VM *v1.VirtualMachine
	// KubeVirt is the cluster's configuration; nil means KubeVirt's defaults.
	KubeVirt *v1.KubeVirt
	// LauncherImage is the image of virt-launcher. Defaults to the one in KubeVirt's registry and version.
	LauncherImage string
	// FallbackLauncherImage is the image of virt-launcher if neither LauncherImage nor a KubeVirt object sets one.
	FallbackLauncherImage string
	// ExporterImage is the image of exporter Pods. Defaults to the one in KubeVirt's registry and version.
	ExporterImage string
	// SidecarShimImage is the default image of hook sidecars. Defaults to the one in KubeVirt's registry and version,
	// otherwise to the one next to the launcher's.
	SidecarShimImage string
	// Volumes are the names of the volumes to hotplug. Defaults to all hotplugged volumes of the VMI.
	Volumes []string

	objects []Object
	vmi     Object // the object that VMI was read as; VMI itself may have been defaulted since
	steps   []step // how the VMI was made from VM
}

// NewCluster combines the objects of all files of a cluster. A duplicate object, and a second VirtualMachineInstance or KubeVirt,
// are errors, as is a VirtualMachine beside either a second one or a VirtualMachineInstance.
func NewCluster(objects ...Object) (*Cluster, error) {
	c := &Cluster{objects: objects}
	var (
		errs  []error
		seen  = map[string]Object{}
		first = map[string]Object{}
	)
	for _, o := range objects {
		if old, twice := seen[o.String()]; twice {
			errs = append(errs, o.fault("metadata.name", "is a duplicate of "+old.Source.String(), "keep one of them"))
			continue
		}
		seen[o.String()] = o
		role := "guest"
		switch v := o.Value.(type) {
		case *v1.VirtualMachineInstance:
			c.VMI, c.vmi = v, o
		case *v1.VirtualMachine:
			c.VM = v
		case *v1.KubeVirt:
			c.KubeVirt, role = v, o.Kind
		default:
			continue
		}
		if old, second := first[role]; second {
			what := "is a second " + o.Kind + " in addition to"
			if o.Kind != old.Kind {
				what = "is one more VMI beside"
			}
			errs = append(errs, o.fault("kind", fmt.Sprintf("%s %s of %s", what, old, old.Source), "render with one at a time"))
			continue
		}
		first[role] = o
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func (o Object) fault(field, reason, remedy string) *Error {
	return &Error{Source: o.Source, Object: o.String(), Field: field, Reason: reason, Remedy: remedy, Err: render.ErrInvalid}
}

// every returns the objects of a type, in the order of the manifests.
func every[T metav1.Object](c *Cluster) (all []T) {
	for _, o := range c.objects {
		if v, ok := o.Value.(T); ok {
			all = append(all, v)
		}
	}
	return all
}

// find returns the object of a reference; nil if no manifest has it.
func (c *Cluster) find(ref instancetype.Ref) metav1.Object {
	for _, o := range c.objects {
		if o.Kind == ref.Kind && o.Value.GetNamespace() == ref.Namespace && o.Value.GetName() == ref.Name {
			return o.Value
		}
	}
	return nil
}

// object returns the object that a value was read as.
func (c *Cluster) object(v metav1.Object) Object {
	for _, o := range c.objects {
		if o.Value == v {
			return o
		}
	}
	return Object{Value: v}
}

// facts returns the objects of the VMI's namespace.
func (c *Cluster) facts(namespace string) render.Facts {
	f := render.Facts{
		Claims: map[string]*corev1.PersistentVolumeClaim{}, ConfigMaps: map[string]bool{},
		NetworkAttachmentDefinitions: map[string]*metav1.PartialObjectMetadata{},
	}
	for _, claim := range c.templateClaims() {
		f.Claims[claim.Name] = claim
	}
	for _, o := range c.objects {
		mine := o.Value.GetNamespace() == namespace
		switch v := o.Value.(type) {
		case *corev1.PersistentVolumeClaim:
			if mine {
				f.Claims[v.Name] = v
			}
		case *corev1.ConfigMap:
			if mine {
				f.ConfigMaps[v.Name] = true
			}
		case *corev1.ResourceQuota:
			if mine {
				f.Quotas = append(f.Quotas, v)
			}
		case *corev1.Namespace:
			if v.Name == namespace {
				f.NamespaceLabels = v.Labels
			}
		case *metav1.PartialObjectMetadata: // of any namespace: a network may reference one
			f.NetworkAttachmentDefinitions[v.Namespace+"/"+v.Name] = v
		}
	}
	return f
}

// Claims returns the PersistentVolumeClaims of the VMI's namespace by name, with those that CDI would create for the
// dataVolumeTemplates of VM, as far as these define them.
func (c *Cluster) Claims() map[string]*corev1.PersistentVolumeClaim {
	return c.facts(c.VMI.Namespace).Claims
}

// export returns the only VirtualMachineExport.
func (c *Cluster) export() (*exportv1.VirtualMachineExport, error) {
	return only(c, every[*exportv1.VirtualMachineExport](c), "", "VirtualMachineExport")
}

// only returns the only one of the objects, of which exactly one is required.
func only[T metav1.Object](c *Cluster, found []T, of, what string) (one T, err error) {
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return one, &Error{
			Object: of, Reason: what + " not found", Remedy: "add its manifest with -f", Err: render.ErrMissingFact,
		}
	}
	first, second := c.object(found[0]), c.object(found[1])
	return one, second.fault("", fmt.Sprintf("is a second %s in addition to %s of %s", what, first, first.Source), "remove one of them")
}
