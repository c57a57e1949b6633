// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/refguest"
	v1 "kubevirt.io/api/core/v1"
)

// corpus are the guests that between them set every field.
func corpus(t testing.TB) map[string]*v1.VirtualMachineInstance {
	t.Helper()
	guests, err := refguest.Corpus()
	if err != nil {
		t.Fatal(err)
	}
	if len(guests) < 90 {
		t.Fatalf("%d guests in the corpus", len(guests))
	}
	return guests
}

func TestCorpusConverts(t *testing.T) {
	for name, vmi := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			if _, err := domain.Convert(vmi, domain.AssumeFacts(vmi)); err != nil {
				t.Error(err)
			}
		})
	}
}
