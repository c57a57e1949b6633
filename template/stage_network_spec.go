// SPDX-License-Identifier: Apache-2.0

package template

// NetworkRules is the stock NetworkSpecValidator.
type NetworkRules struct{}

// ValidateNetworks implements NetworkSpecValidator.
func (NetworkRules) ValidateNetworks(Input) error { return nil }

func validateNetworks(d *Draft, validators []NetworkSpecValidator) error {
	for _, v := range validators {
		if err := v.ValidateNetworks(d.input); err != nil {
			return err
		}
	}
	return nil
}
