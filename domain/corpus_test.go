// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
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

// refusedGuests are those of the corpus that have no domain, by the field that is
// to blame.
var refusedGuests = map[string]string{
	"bare": "spec.domain.memory.guest", // a guest without memory
}

func TestCorpusConverts(t *testing.T) {
	for name, vmi := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			_, err := domain.Convert(vmi, domain.AssumeFacts(vmi))
			field := refusedGuests[name]
			var refusal *domain.Error
			switch {
			case field == "" && err != nil:
				t.Error(err)
			case field != "" && (!errors.As(err, &refusal) || refusal.Field != field):
				t.Errorf("error is %v, want one for %s", err, field)
			}
		})
	}
}
