// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// byName are keys of objects without a namespace, and of things that are no objects: their value may be a name.
var byName = []string{"node", "request", "volume", "bridge"}

// TestLogs_ObjectKeys keeps the contract of CONTRIBUTING.md: an object is one value with its namespace, not a name.
func TestLogs_ObjectKeys(t *testing.T) {
	fset := token.NewFileSet()
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			continue
		}
		file, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range bareNames(file) {
			t.Errorf("%s: the log line %q identifies an object by its name alone: log client.ObjectKeyFromObject", name, wrong)
		}
	}
}

func TestBareNames(t *testing.T) {
	const source = `package p
func f() {
	log.Info("one", "pod", pod.Name)
	log.V(1).Info("two", "why", why, "claim", a.Claim.Name)
	log.Error(err, "three", "namespace", ns)
	log.Info("four", "pod", client.ObjectKeyFromObject(pod), "node", node.Name)
	fmt.Println("five", "pod", pod.Name)
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "two", "three"}, bareNames(file)); diff != "" {
		t.Errorf("other log lines (-want +got):\n%s", diff)
	}
}

// message is the position of the message in the arguments of a log line.
var message = map[string]int{"Info": 0, "Error": 1}

// bareNames returns the messages of log lines with a namespace, or a field Name, as a value of its own.
func bareNames(file *ast.File) []string {
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is {
			return true
		}
		of, is := call.Fun.(*ast.SelectorExpr)
		if !is {
			return true
		}
		at, logs := message[of.Sel.Name]
		if !logs {
			return true
		}
		for i := at + 1; i+1 < len(call.Args); i += 2 {
			if bareName(text(call.Args[i]), call.Args[i+1]) {
				found = append(found, text(call.Args[at]))
			}
		}
		return true
	})
	return found
}

func bareName(key string, value ast.Expr) bool {
	field, is := value.(*ast.SelectorExpr)
	return key == "namespace" || is && field.Sel.Name == "Name" && key != "" && !slices.Contains(byName, key)
}

// text returns the value of a string literal, empty for anything else.
func text(e ast.Expr) string {
	lit, is := e.(*ast.BasicLit)
	if !is || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}
