// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"os"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/template"
)

// columns is the maximum length of a line of the drawing.
const columns = 116

// flow draws the stages in order.
func flow() string {
	var b strings.Builder
	line := "//\t"
	for i, name := range template.Default().Stages() {
		if i > 0 {
			name = "▶ " + name
		}
		if len([]rune(line))+len([]rune(name)) > columns {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = "//\t"
		}
		line += name + " "
	}
	return b.String() + strings.TrimRight(line, " ") + "\n"
}

func TestDefault_DocumentedStages(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "(Stage.Pods):\n//\n", "//\n// Parts of stock stages"
	head, rest, found := strings.Cut(string(raw), begin)
	drawn, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("doc.go does not draw the stages")
	}
	want := flow()
	if *update {
		if err := os.WriteFile("doc.go", []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if drawn != want {
		t.Errorf("the stages in doc.go differ from Default (run the test with -update):\n%s", want)
	}
}
