// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// kustomization has the features of kustomize that the embedded folders use; any other is an error.
type kustomization struct {
	APIVersion  string   `json:"apiVersion"`
	Kind        string   `json:"kind"`
	Resources   []string `json:"resources"`
	Components  []string `json:"components"`
	Patches     []patch  `json:"patches"`
	SortOptions struct {
		Order string `json:"order"`
	} `json:"sortOptions"`
}

// patch is a file of operations (RFC 6902) for one object.
type patch struct {
	Path   string `json:"path"`
	Target target `json:"target"`
}

type target struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

func (t target) of(o *unstructured.Unstructured) bool {
	return t == target{Group: o.GroupVersionKind().Group, Kind: o.GetKind(), Name: o.GetName()}
}

// build returns the objects of a folder, as kustomize builds them. A component adds to the objects that were there before.
func build(files fs.FS, folder string, all []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	file := path.Join(folder, "kustomization.yaml")
	text, err := fs.ReadFile(files, file)
	if err != nil {
		return nil, err
	}
	var k kustomization
	if err := yaml.UnmarshalStrict(text, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if order := k.SortOptions.Order; order != "" && order != "fifo" {
		return nil, fmt.Errorf("%s: sortOptions.order: %q is not supported, use fifo", file, order)
	}
	for _, name := range k.Resources {
		more, err := resource(files, path.Join(folder, name))
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	for _, name := range k.Components {
		if all, err = build(files, path.Join(folder, name), all); err != nil {
			return nil, err
		}
	}
	for _, p := range k.Patches {
		if err := p.apply(files, folder, all); err != nil {
			return nil, fmt.Errorf("%s: %w", path.Join(folder, p.Path), err)
		}
	}
	return all, nil
}

// resource returns the objects of a file or of a folder.
func resource(files fs.FS, name string) ([]*unstructured.Unstructured, error) {
	if path.Ext(name) == "" {
		return build(files, name, nil)
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	objects, err := Decode(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return objects, nil
}

func (p patch) apply(files fs.FS, folder string, all []*unstructured.Unstructured) error {
	text, err := fs.ReadFile(files, path.Join(folder, p.Path))
	if err != nil {
		return err
	}
	if text, err = yaml.YAMLToJSONStrict(text); err != nil {
		return err
	}
	operations, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return err
	}
	for _, o := range all {
		if !p.Target.of(o) {
			continue
		}
		object, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if object, err = operations.Apply(object); err != nil {
			return err
		}
		return json.Unmarshal(object, o)
	}
	return fmt.Errorf("target %+v is not one of the objects", p.Target)
}
