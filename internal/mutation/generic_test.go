// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// core is the safety core: who has a guest, and which own writes are seen. Every condition and statement of these files
// is changed in turn.
var core = []string{
	"handoff/step.go", "handoff/table.go", "handoff/lease.go", "handoff/command.go", "handoff/fence.go", "handoff/vmi.go",
	"expectations/classify.go", "expectations/entry.go", "expectations/check.go", "expectations/observe.go", "expectations/finding.go",
}

// swapped are operators, and what each becomes.
var swapped = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.LAND: "||", token.LOR: "&&",
}

// generic returns all changes of the files of one kind: each comparison and connection of conditions becomes its
// neighbour, each condition of an if its opposite, each call, assignment and increment that stands alone nothing, each
// true false and each false true. All tests of the package may notice.
func generic(root string, files []string) ([]Plant, error) {
	var all []Plant
	for _, file := range files {
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, fmt.Errorf("mutation: %w", err)
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("mutation: %w", err)
		}
		g := &generator{file: file, src: string(src), set: set, names: map[string]int{}}
		ast.Inspect(tree, func(n ast.Node) bool {
			g.visit(n)
			return true
		})
		all = append(all, g.found...)
	}
	return all, nil
}

// generator collects the changes of one file.
type generator struct {
	file, src string
	set       *token.FileSet
	function  string
	found     []Plant
	names     map[string]int
}

func (g *generator) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		g.function = n.Name.Name
	case *ast.BinaryExpr:
		if to, known := swapped[n.Op]; known {
			g.add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to)
		}
	case *ast.IfStmt:
		cond := g.src[g.offset(n.Cond.Pos()):g.offset(n.Cond.End())]
		g.add(n.Cond.Pos(), n.Cond.End(), "!("+cond+")")
	case *ast.ExprStmt, *ast.IncDecStmt:
		g.add(n.Pos(), n.End(), "{}")
	case *ast.AssignStmt:
		if n.Tok == token.ASSIGN {
			g.add(n.Pos(), n.End(), "{}")
		}
	case *ast.Ident:
		if opposite := map[string]string{"true": "false", "false": "true"}[n.Name]; opposite != "" {
			g.add(n.Pos(), n.End(), opposite)
		}
	}
}

func (g *generator) offset(p token.Pos) int { return g.set.Position(p).Offset }

// add notes a change. Its name says where it is without a line number, which other changes of the file would shift.
func (g *generator) add(from, to token.Pos, with string) {
	begin, end := g.offset(from), g.offset(to)
	line, _, _ := strings.Cut(g.src[strings.LastIndexByte(g.src[:begin], '\n')+1:], "\n")
	old := g.src[begin:end]
	name := fmt.Sprintf("%s %s: %s: %s becomes %s", path.Base(g.file), g.function, brief(line), brief(old), brief(with))
	if g.names[name]++; g.names[name] > 1 {
		name += fmt.Sprintf(" #%d", g.names[name])
	}
	g.found = append(g.found, Plant{Name: name, File: g.file, Old: old, New: with, Package: path.Dir(g.file), Run: ".", at: begin, within: "1m"})
}

// brief is a piece of code in one line.
func brief(code string) string {
	const most = 70
	if code = strings.Join(strings.Fields(code), " "); len(code) > most {
		return code[:most] + "..."
	}
	return code
}
