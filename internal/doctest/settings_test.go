// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// setting is a row of the table of fields: field, flag, what it decides, when it takes effect.
var setting = regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)` \\| `--([a-z-]+)` \\| [^|]+ \\| (at once|at the next start) \\|$")

func TestSettingsTable_MatchesOptions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, m := range setting.FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[2:]
	}
	known := map[string]bool{}
	for _, kind := range configfile.Kinds() {
		for _, o := range configfile.NewConfiguration(kind).Options() {
			known[o.Field] = true
			when := "at the next start"
			if o.Live {
				when = "at once"
			}
			row, listed := rows[o.Field]
			switch {
			case !listed && o.Live:
				t.Errorf("docs/operations.md does not say that %s takes effect at once", o.Field)
			case listed && row[0] != o.Flag:
				t.Errorf("the flag of %s is --%s, not --%s", o.Field, o.Flag, row[0])
			case listed && row[1] != when:
				t.Errorf("%s takes effect %s, not %s", o.Field, when, row[1])
			}
		}
	}
	for field := range rows {
		if !known[field] {
			t.Errorf("there is no field %s", field)
		}
	}
}

// Configuration files that are shown are sound.
func TestConfigurationBlocks_Parse(t *testing.T) {
	found := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if !b.is("yaml") || !strings.Contains(b.text, configfile.APIVersion) {
				continue
			}
			found++
			c, err := configfile.Read(d.name, []byte(b.text))
			if err != nil {
				t.Errorf("%s:%d: %v", d.name, b.line, err)
				continue
			}
			for _, fault := range c.Validate() {
				if !strings.Contains(fault.Error(), "Required") {
					t.Errorf("%s:%d: %v", d.name, b.line, fault)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no document shows a configuration file")
	}
}
