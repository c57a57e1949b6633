// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

func TestStamp_LastApplied(t *testing.T) {
	d, err := convert.Convert(domainfixture.Small(), domainfixture.Facts[convert.Facts]())
	if err != nil {
		t.Fatal(err)
	}
	if err := Stamp(d); err != nil {
		t.Fatal(err)
	}
	m, _, err := domain.MetadataOf(d)
	if err != nil || m.UID != types.UID("5b6c1a2e-0000-4000-8000-00000000000a") {
		t.Fatalf("metadata is %+v, %v", m, err)
	}
	last, err := LastApplied(m)
	if err != nil || last == nil || last.Metadata != nil || last.Name != d.Name {
		t.Fatalf("last applied is %+v, %v", last, err)
	}
	if none, err := LastApplied(domain.Metadata{}); none != nil || err != nil {
		t.Errorf("without a stamp: %v, %v", none, err)
	}
	if _, err := LastApplied(domain.Metadata{LastApplied: "<"}); err == nil {
		t.Error("a broken stamp is no error")
	}
	if err := Stamp(&libvirtxml.Domain{Name: "x"}); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("stamp without metadata: %v", err)
	}
}
