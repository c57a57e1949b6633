// SPDX-License-Identifier: Apache-2.0

package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	hookSidecarsAnnotation = "hooks.kubevirt.io/hookSidecars"
	hookSidecarsField      = "metadata.annotations[" + hookSidecarsAnnotation + "]"
)

// HookAnnotation creates the sidecars of the annotation hooks.kubevirt.io/hookSidecars, a JSON list of Sidecars in
// rendering order. Stage supported checks the feature gate Sidecar.
type HookAnnotation struct{}

// Sidecars implements SidecarCreator. An invalid list, or an unknown field, is an error with its position. The stage
// validates the sidecars, as for every creator.
func (HookAnnotation) Sidecars(in Input) ([]render.Sidecar, error) {
	text, ok := in.VMI.Annotations[hookSidecarsAnnotation]
	if !ok {
		return nil, nil
	}
	var elements []json.RawMessage
	if err := strictJSON([]byte(text), &elements); err != nil {
		return nil, notAList(hookSidecarsField, err)
	}
	list := make([]render.Sidecar, len(elements))
	var errs []error
	for i, element := range elements {
		at := fmt.Sprintf("%s[%d]", hookSidecarsField, i)
		if err := strictJSON(element, &list[i]); err != nil {
			errs = append(errs, notAList(at, err))
			continue
		}
		list[i].From = at
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return list, nil
}

// strictJSON decodes one value and rejects null, unknown fields and trailing data.
func strictJSON(text []byte, into any) error {
	if string(bytes.TrimSpace(text)) == "null" {
		return errors.New("null is not a valid value")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("unexpected data after character %d", decoder.InputOffset())
	}
	return nil
}

func notAList(at string, err error) *render.Error {
	reason := err.Error()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		reason = fmt.Sprintf("at character %d: %s", syntax.Offset, reason)
	case errors.As(err, &kind) && kind.Field != "":
		at += "." + kind.Field
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		reason = "is not complete"
	}
	return render.Invalid(at, reason,
		`use a JSON list such as [{"image": "example.com/hook:v1", "args": ["--version", "v1alpha2"]}]`)
}

// BindingPluginSidecars creates the sidecars of the network binding plugins of the VMI's interfaces: one for each plugin
// with a sidecarImage, in the order of the first interface of each.
type BindingPluginSidecars struct{}

// Sidecars implements SidecarCreator. A plugin that is missing in Config.NetworkBindings is an error.
func (BindingPluginSidecars) Sidecars(in Input) (list []render.Sidecar, err error) {
	seen := map[string]bool{}
	for i := range in.VMI.Spec.Domain.Devices.Interfaces {
		binding := in.VMI.Spec.Domain.Devices.Interfaces[i].Binding
		if binding == nil || seen[binding.Name] {
			continue
		}
		seen[binding.Name] = true
		plugin, ok := in.Config.NetworkBindings[binding.Name]
		if !ok {
			return nil, unregistered(elementOf(vmiInterfaces, i), binding.Name)
		}
		if plugin.SidecarImage != "" {
			list = append(list, render.Sidecar{
				Image: plugin.SidecarImage, PullPolicy: in.Config.ImagePullPolicy,
				Plugin: binding.Name, DeviceInfo: plugin.DownwardAPI == v1.DeviceInfo,
				From: "Config.NetworkBindings[" + binding.Name + "]",
			})
		}
	}
	return list, nil
}

// askSidecars calls the creators in order, and validates the sidecars. A ConfigMap that is missing in Facts.ConfigMaps is
// an error that wraps render.ErrMissingFact.
func askSidecars(d *render.Draft, creators []SidecarCreator) error {
	var errs []error
	in := d.Input()
	for _, c := range creators {
		more, err := c.Sidecars(in)
		errs = append(errs, err)
		for _, s := range more {
			if s.From == "" {
				s.From = fmt.Sprintf("sidecars[%d]", len(d.Sidecars()))
			}
			errs = append(errs, checkSidecar(in, &s)...)
			d.RequestSidecar(s)
		}
	}
	return errors.Join(errs...)
}
