// SPDX-License-Identifier: Apache-2.0

package template

// HookAnnotation creates the sidecars of the annotation hooks.kubevirt.io/hookSidecars.
type HookAnnotation struct{}

// Sidecars implements SidecarCreator.
func (HookAnnotation) Sidecars(Input) ([]Sidecar, error) { return nil, nil }

// BindingPluginSidecars creates the sidecars of network binding plugins.
type BindingPluginSidecars struct{}

// Sidecars implements SidecarCreator.
func (BindingPluginSidecars) Sidecars(Input) ([]Sidecar, error) { return nil, nil }

func askSidecars(d *Draft, creators []SidecarCreator) error {
	for _, c := range creators {
		more, err := c.Sidecars(d.input)
		if err != nil {
			return err
		}
		d.sidecars = append(d.sidecars, more...)
	}
	return nil
}

func hookSockets(*Draft) error { return nil }

func sidecars(*Draft) error { return nil }
