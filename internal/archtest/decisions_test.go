// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A pass decides before it acts, and, where its results change the plan, once more. No other function of a controller decides than
// those that only report.
func TestControllers_DecideTwiceAtMost(t *testing.T) {
	for folder, want := range map[string]map[string]int{
		"vmi/vmictrl":             {"step": 2, "Plan": 1, "Explain": 1},
		"vm/vmctrl":               {"step": 2, "Plan": 1},
		"migration/migrationctrl": {"Reconcile": 2},
		"domain/domainctrl":       {"pass": 1, "request": 1},
	} {
		sources, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if f, is := d.(*ast.FuncDecl); is {
					countDecisions(f, got)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s decides elsewhere (-want +got):\n%s", folder, diff)
		}
	}
}

// countDecisions counts the calls of a decider in a function; one in a loop counts as many.
func countDecisions(f *ast.FuncDecl, counts map[string]int) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			ast.Inspect(n, func(n ast.Node) bool {
				if decides(n) {
					counts[f.Name.Name] += 10
				}
				return true
			})
		default:
			if decides(n) {
				counts[f.Name.Name]++
			}
		}
		return true
	})
}

func decides(n ast.Node) bool {
	call, is := n.(*ast.CallExpr)
	if !is {
		return false
	}
	of, is := call.Fun.(*ast.SelectorExpr)
	return is && strings.HasPrefix(of.Sel.Name, "Decide")
}
