// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestConvert_Golden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden objects: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			vmi, f := domainfixture.Read(t, file), domainfixture.Facts[Facts]()
			if vmi.Spec.Architecture == "arm64" {
				f.Arch = xmlspec.ArchARM
			}
			if vmi.Spec.Domain.CPU != nil && vmi.Spec.Domain.CPU.Model == v1.CPUModeHostPassthrough {
				f.Emulation = false
			}
			before := vmi.DeepCopy()
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, vmi); diff != "" {
				t.Errorf("Convert changed the object:\n%s", diff)
			}
			got := domainfixture.Marshal(t, d)
			golden := strings.TrimSuffix(file, ".yaml") + ".xml"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (go test -update writes it)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("domain (-want +got):\n%s", diff)
			}
			again, _ := Convert(vmi, f)
			if domainfixture.Marshal(t, again) != got {
				t.Error("a second conversion returns another domain")
			}
		})
	}
}

// wantError checks field and sentinel of an error.
func wantError(t *testing.T, err error, field string, sentinel error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want an *Error for %s", err, field)
	}
	if e.Field != field || !errors.Is(err, sentinel) {
		t.Errorf("error is %q with field %q, want field %q and %v", err, e.Field, field, sentinel)
	}
	if e.Object == "" || e.Reason == "" || e.Remedy == "" {
		t.Errorf("object, reason or remedy is empty: %+v", e)
	}
}
