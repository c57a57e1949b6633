// SPDX-License-Identifier: Apache-2.0

package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "kubevirt.io/api/core/v1"
)

const (
	hookSidecarsAnnotation = "hooks.kubevirt.io/hookSidecars"
	hookSidecarsField      = "metadata.annotations[" + hookSidecarsAnnotation + "]"
)

// HookAnnotation creates the sidecars of the annotation hooks.kubevirt.io/hookSidecars, a JSON list of Sidecars in the order
// in which they are rendered. Whether a cluster lets its users ask for sidecars, by feature gate Sidecar, is for stage
// supported to decide.
type HookAnnotation struct{}

// Sidecars implements SidecarCreator. Text that is not such a list, or has fields that Sidecar does not have, is an error
// that names the place. What the list says is checked by the stage, as for every creator.
func (HookAnnotation) Sidecars(in Input) ([]Sidecar, error) {
	text, ok := in.VMI.Annotations[hookSidecarsAnnotation]
	if !ok {
		return nil, nil
	}
	var elements []json.RawMessage
	if err := strictJSON([]byte(text), &elements); err != nil {
		return nil, notAList(hookSidecarsField, err)
	}
	list := make([]Sidecar, len(elements))
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

// strictJSON decodes one value and refuses null, unknown fields and whatever follows.
func strictJSON(text []byte, into any) error {
	if string(bytes.TrimSpace(text)) == "null" {
		return errors.New("null is no value")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("there is more after character %d", decoder.InputOffset())
	}
	return nil
}

func notAList(at string, err error) *Error {
	reason := err.Error()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		reason = fmt.Sprintf("at character %d: %s", syntax.Offset, reason)
	case errors.As(err, &kind) && kind.Field != "":
		at += "." + kind.Field
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		reason = "ends before it is complete"
	}
	return invalid(at, reason,
		`write a JSON list such as [{"image": "example.com/hook:v1", "args": ["--version", "v1alpha2"]}]`)
}

// BindingPluginSidecars creates the sidecars of the network binding plugins that the VMI's interfaces use: one of each
// plugin that has a sidecarImage, in the order of the interfaces that use it first.
type BindingPluginSidecars struct{}

// Sidecars implements SidecarCreator. A plugin that Config.NetworkBindings lacks is an error.
func (BindingPluginSidecars) Sidecars(in Input) (list []Sidecar, err error) {
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
			list = append(list, Sidecar{
				Image: plugin.SidecarImage, PullPolicy: in.Config.ImagePullPolicy,
				Plugin: binding.Name, DeviceInfo: plugin.DownwardAPI == v1.DeviceInfo,
				From: "Config.NetworkBindings[" + binding.Name + "]",
			})
		}
	}
	return list, nil
}

// askSidecars asks the creators, in order, and checks what they return. A ConfigMap that Facts.ConfigMaps lacks is an error
// that wraps ErrMissingFact.
func askSidecars(d *Draft, creators []SidecarCreator) error {
	var errs []error
	for _, c := range creators {
		more, err := c.Sidecars(d.input)
		errs = append(errs, err)
		for _, s := range more {
			if s.From == "" {
				s.From = fmt.Sprintf("sidecars[%d]", len(d.sidecars))
			}
			errs = append(errs, checkSidecar(d.input, &s)...)
			d.sidecars = append(d.sidecars, s)
		}
	}
	return errors.Join(errs...)
}
