// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/template/render"
)

func stage(name string, apply func(*render.Draft)) render.Stage {
	return render.Stage{Name: name, Apply: func(d *render.Draft) error { apply(d); return nil }}
}

// originAt returns the origin of exactly one field.
func originAt(t *testing.T, e *render.Explanation, field string) render.Origin {
	t.Helper()
	origins, err := e.At(field)
	if err != nil {
		t.Fatal(err)
	}
	if len(origins) != 1 {
		t.Fatalf("%s has %d origins: %v", field, len(origins), origins)
	}
	return origins[0]
}

func wantError(t *testing.T, err error, field string, class error) {
	t.Helper()
	var e *render.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *render.Error", err)
	}
	if e.Field != field || !errors.Is(err, class) {
		t.Errorf("got field %q, error %v; want field %q, %v", e.Field, err, field, class)
	}
	if e.Stage == "" || !strings.Contains(e.Object, "default/web") || e.Remedy == "" || e.Reason == "" {
		t.Errorf("incomplete error %+v", e)
	}
	if !strings.Contains(err.Error(), field) {
		t.Errorf("%q does not name the field", err)
	}
}
