// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"errors"
	"testing"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// refusedGuests are the VMIs of the corpus without a domain, with the field to blame.
var refusedGuests = map[string]string{
	"bare": "spec.domain.memory.guest", // no memory
}

func TestConvert_Corpus(t *testing.T) {
	for name, vmi := range domainfixture.Corpus(t) {
		t.Run(name, func(t *testing.T) {
			_, err := convert.Convert(vmi, assume.Facts(vmi))
			field := refusedGuests[name]
			var refusal *convert.Error
			switch {
			case field == "" && err != nil:
				t.Error(err)
			case field != "" && (!errors.As(err, &refusal) || refusal.Field != field):
				t.Errorf("error is %v, want one for %s", err, field)
			}
		})
	}
}
