// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// Objects reads the sources of VMI disks: ConfigMaps, and Secrets on a node whose launcher Pods have
// no volumes ([Workspace.Pods] is nil).
type Objects interface {
	// ConfigMap returns the files of a ConfigMap by name. The error wraps fs.ErrNotExist if it does
	// not exist, and fs.ErrPermission if the node may not read it.
	ConfigMap(ctx context.Context, namespace, name string) (map[string][]byte, error)
	// Secret returns the files of a Secret by name, with the same errors.
	Secret(ctx context.Context, namespace, name string) (map[string][]byte, error)
}

// objectRef names a ConfigMap or a Secret.
type objectRef struct {
	name      string
	configMap bool
	optional  bool
	// volume is the volume of the launcher Pod with the Secret.
	volume string
}

// blame builds the error for the field that names an object.
type blame func(reason, remedy string, err error) error

// errNoObjects is the error of a node that can read neither ConfigMaps nor Secrets.
var errNoObjects = errors.New("ConfigMaps and Secrets are not supported on this node")

// read returns the files of an object by name.
func (w generated) read(ctx context.Context, vmi *v1.VirtualMachineInstance, ref objectRef) (map[string][]byte, error) {
	switch {
	case !ref.configMap && w.Pods != nil:
		return w.Pods.Secret(ctx, vmi, ref.volume)
	case w.Objects == nil:
		return nil, errNoObjects
	case ref.configMap:
		return w.Objects.ConfigMap(ctx, vmi.Namespace, ref.name)
	}
	return w.Objects.Secret(ctx, vmi.Namespace, ref.name)
}

// configFiles returns the files of an object in the VMI's namespace, sorted; none if it does not
// exist and is optional.
func (w generated) configFiles(ctx context.Context, vmi *v1.VirtualMachineInstance, ref objectRef, fault blame) ([]seed, error) {
	kind := "Secret"
	if ref.configMap {
		kind = "ConfigMap"
	}
	data, err := w.read(ctx, vmi, ref)
	switch {
	case ref.optional && errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errNoObjects):
		return nil, fault(err.Error(), "configure the node's access to them", nil)
	case errors.Is(err, fs.ErrPermission):
		return nil, fault(fmt.Sprintf("Forbidden: agents may not read %s %q", kind, ref.name), "let them get it by a Role in namespace "+
			vmi.Namespace+", or store the data in a ConfigMap or the spec", fs.ErrPermission)
	case err != nil:
		return nil, fault(fmt.Sprintf("cannot read %s %q", kind, ref.name), "create it, or correct the name", err)
	}
	var files []seed
	for _, name := range slices.Sorted(maps.Keys(data)) {
		// The API server checks that as well, but a path is not built on trust.
		if errs := validation.IsConfigMapKey(name); len(errs) > 0 {
			return nil, fault(fmt.Sprintf("Invalid value: key %q of %s %q: %s", name, kind, ref.name, errs[0]), "rename the key", domain.ErrInvalid)
		}
		files = append(files, seed{name, data[name]})
	}
	return files, nil
}
