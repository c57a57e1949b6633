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

	"github.com/virtloom/virtloom/domain"
)

// Objects reads the sources of VMI disks that a kubelet would have mounted.
type Objects interface {
	// ConfigMap returns the files of a ConfigMap by name. The error wraps fs.ErrNotExist if it does
	// not exist, and fs.ErrPermission if the node may not read it.
	ConfigMap(ctx context.Context, namespace, name string) (map[string][]byte, error)
	// Secret returns the files of a Secret by name, with the same errors.
	Secret(ctx context.Context, namespace, name string) (map[string][]byte, error)
}

// secretsRole lets agents read Secrets by name, in the namespaces where it is bound to them:
// refdaemon/config/rbac/secrets.yaml.
const secretsRole = "virtloom-node-secrets"

// objectRef names a ConfigMap or a Secret.
type objectRef struct {
	name      string
	configMap bool
	optional  bool
}

// blame builds the error for the field that names an object.
type blame func(reason, remedy string, err error) error

// configFiles returns the files of an object in the VMI's namespace, sorted; none if it does not
// exist and is optional.
func (w generated) configFiles(ctx context.Context, namespace string, ref objectRef, fault blame) ([]seed, error) {
	if w.Objects == nil {
		return nil, fault("ConfigMaps and Secrets are not supported on this node", "configure the node's access to them", nil)
	}
	read, kind := w.Objects.Secret, "Secret"
	if ref.configMap {
		read, kind = w.Objects.ConfigMap, "ConfigMap"
	}
	data, err := read(ctx, namespace, ref.name)
	if ref.optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fault(fmt.Sprintf("Forbidden: agents may not read %s %q", kind, ref.name), "bind ClusterRole "+secretsRole+
			" to them in namespace "+namespace+", or store the data in a ConfigMap or the spec", fs.ErrPermission)
	}
	if err != nil {
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
