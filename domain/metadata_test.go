// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

func TestMetadata_RoundTrip(t *testing.T) {
	deadline := time.Date(2031, 2, 3, 4, 5, 6, 7000, time.UTC)
	for name, m := range map[string]Metadata{
		"least": {Namespace: "n", Name: "n", UID: "u"},
		"all": {
			Namespace: "<n>", Name: `"&'`, UID: "u", Epoch: 1<<64 - 1, GraceDeadline: &deadline, ShutdownAt: &deadline, MigrationUID: "m", Paused: true,
			GracePeriod: new(90 * time.Second), ResumedAt: &deadline, ResumeDelay: 20 * time.Second, ThawAt: &deadline,
			DiskBytes:   map[string]int64{"root": 1 << 40, "<\"": 0},
			LastApplied: "<domain>\n\t<name>]]></name></domain>",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &libvirtxml.Domain{Type: "qemu", Name: "x"}
			if err := m.Put(d); err != nil {
				t.Fatal(err)
			}
			again := &libvirtxml.Domain{}
			if err := again.Unmarshal(domainfixture.Marshal(t, d)); err != nil {
				t.Fatal(err)
			}
			got, ok, err := MetadataOf(again)
			if err != nil || !ok {
				t.Fatalf("found: %v, %v", ok, err)
			}
			if diff := cmp.Diff(m, got); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseMetadata_OtherElements(t *testing.T) {
	const ours = `<v:guest xmlns:v="https://virtloom.dev/domain/v1"><v:namespace>a</v:namespace><v:name>b</v:name><v:uid>c</v:uid><v:epoch>4</v:epoch></v:guest>`
	want := Metadata{Namespace: "a", Name: "b", UID: "c", Epoch: 4}
	for name, row := range map[string]struct {
		xml  string
		want Metadata
		ok   bool
	}{
		"with a prefix":          {ours, want, true},
		"after others":           {`<o:guest xmlns:o="urn:o"><uid>x</uid></o:guest> text ` + ours, want, true},
		"in a metadata element":  {"<metadata>" + ours + "</metadata>", want, true},
		"of another namespace":   {`<guest xmlns="urn:o"><uid>x</uid></guest>`, Metadata{}, false},
		"inside of another":      {`<o:x xmlns:o="urn:o">` + ours + `</o:x>`, Metadata{}, false},
		"nothing":                {"", Metadata{}, false},
		"unknown elements in it": {strings.Replace(ours, "</v:guest>", "<v:later>1</v:later></v:guest>", 1), want, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok, err := ParseMetadata(row.xml)
			if err != nil || ok != row.ok || !cmp.Equal(got, row.want) {
				t.Errorf("got %+v, %v, %v", got, ok, err)
			}
		})
	}
	bare := `<guest><uid>c</uid></guest>`
	if m, ok, err := ParseMetadataElement(bare); err != nil || !ok || m.UID != "c" {
		t.Errorf("without a namespace: %+v, %v, %v", m, ok, err)
	}
}

func TestParseMetadata_Invalid(t *testing.T) {
	for name, s := range map[string]string{
		"not closed": `<guest xmlns="https://virtloom.dev/domain/v1">`,
		"epoch":      `<guest xmlns="https://virtloom.dev/domain/v1"><epoch>-1</epoch></guest>`,
		"grace":      `<guest xmlns="https://virtloom.dev/domain/v1"><gracePeriod>long</gracePeriod></guest>`,
		"delay":      `<guest xmlns="https://virtloom.dev/domain/v1"><resumeDelay>1</resumeDelay></guest>`,
		"disk":       `<guest xmlns="https://virtloom.dev/domain/v1"><disk name="a" bytes="much"/></guest>`,
		"deadline":   `<guest xmlns="https://virtloom.dev/domain/v1"><graceDeadline>soon</graceDeadline></guest>`,
	} {
		if _, ok, err := ParseMetadata(s); err == nil || ok {
			t.Errorf("%s: found %v, %v", name, ok, err)
		}
	}
	if _, err := (Metadata{Name: "a\x01"}).XML(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a character XML has not: %v", err)
	}
}
