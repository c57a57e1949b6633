// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
)

// row is one row of the table of differences: fields whose paths match a pattern, in which * stands for any text.
type row struct {
	where, pattern string
	guests, fields int
}

func (r *row) matches(path string) bool {
	parts := strings.Split(r.pattern, "*")
	rest, ok := strings.CutPrefix(path, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, last)
}

// documented reads the table: | Where | `Field` | Fields of guests | Reason |.
func documented(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile("../../docs/with-kubevirt.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| Where | Field | Fields of guests | Reason |\n")
	if !found {
		t.Fatal("table of differences not found")
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			break
		}
		if strings.HasPrefix(cells[0], "-") || strings.HasPrefix(cells[0], " -") {
			continue
		}
		r := row{where: strings.TrimSpace(cells[0]), pattern: strings.Trim(cells[1], " `")}
		fields, guests, ok := strings.Cut(strings.TrimSpace(cells[2]), " of ")
		var bad [2]error
		r.fields, bad[0] = strconv.Atoi(fields)
		r.guests, bad[1] = strconv.Atoi(guests)
		if !ok || bad[0] != nil || bad[1] != nil || strings.TrimSpace(cells[3]) == "" {
			t.Fatalf("invalid row of the table: %s", line)
		}
		rows = append(rows, r)
	}
	return rows
}

// places returns the PCI addresses of devices by the keys of [convert.Layout].
func places(d *libvirtxml.Domain) map[string]string {
	out := map[string]string{}
	layout := convert.LayoutOf(d)
	for key, p := range layout.Places {
		out[key] = text(p)
	}
	return out
}

func text(p convert.Place) string { return fmt.Sprintf("%02x:%02x.%x", p.Bus, p.Slot, p.Function) }

// elsewhere are the VMIs with devices at other addresses than KubeVirt's, with the reason.
var elsewhere = map[string]string{
	"m20-disk-buses":        "libvirt adds a second SATA controller, and the bridge for it before all else",
	"m26-disk-many-30":      "libvirt adds more SATA controllers, and the bridge for them before all else",
	"m43-dev-detach-all":    "libvirt adds the serial bus, and a slot of bus 0 is left for the display that is not there",
	"m82-net-legacy-models": "libvirt puts the bridge for conventional cards before all else",
}
