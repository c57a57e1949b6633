// SPDX-License-Identifier: Apache-2.0

package rig

import "testing"

func TestFreePorts(t *testing.T) {
	got, err := FreePorts(3)
	if err != nil || len(got) != 3 || got[0] == got[1] || got[1] == got[2] || got[0] == got[2] {
		t.Errorf("got %v, %v", got, err)
	}
}
