// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/virtloom/virtloom/refdaemon/config"
)

func TestManifests_Printed(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"manifests"}, &out); err != nil {
		t.Fatal(err)
	}
	got, err := config.Decode(&out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := config.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d objects, which are not the %d of the package", len(got), len(want))
	}
}
