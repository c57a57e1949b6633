// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// Site is a place in a shipped file at which a mutant differs from it.
type Site struct {
	// Number is that of the mutant; it is chosen by an environment variable.
	Number int
	// At is file and line, What the change.
	At, What string
}

// chosen is the environment variable that says which mutant is in force.
const chosen = "VIRTLOOM_MUTANT"

// support is what mutants are compiled with. Mutant 0 is the code as it is.
const support = `
import (
	"cmp"
	"os"
	"strconv"
)

var mutantNumber, _ = strconv.Atoi(os.Getenv("` + chosen + `"))

func mutantIs(n int) bool { return n == mutantNumber }
func mutantNot(n int, c bool) bool { return c != mutantIs(n) }
func mutantLT[T cmp.Ordered](n int, a, b T) bool { return a < b || mutantIs(n) && a == b }
func mutantGT[T cmp.Ordered](n int, a, b T) bool { return a > b || mutantIs(n) && a == b }
func mutantLE[T cmp.Ordered](n int, a, b T) bool { return a < b || !mutantIs(n) && a == b }
func mutantGE[T cmp.Ordered](n int, a, b T) bool { return a > b || !mutantIs(n) && a == b }
`

var comparisons = map[token.Token]string{token.LSS: "mutantLT", token.GTR: "mutantGT", token.LEQ: "mutantLE", token.GEQ: "mutantGE"}

// edit replaces the text between two offsets. Of those at one place the one with the
// lowest rank comes first.
type edit struct {
	from, to, rank int
	text           string
}

// sites puts all mutants of a file into it, numbered from next.
type sites struct {
	src   []byte
	name  string
	files *token.FileSet
	next  int
	edits []edit
	all   []Site
}

// instrument returns the file with all its mutants in it.
func instrument(name string, src []byte, next int) ([]byte, []Site, error) {
	x := &sites{src: src, name: name, files: token.NewFileSet(), next: next}
	f, err := parser.ParseFile(x.files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, fmt.Errorf("mutation: %w", err)
	}
	for _, d := range f.Decls {
		if fn, is := d.(*ast.FuncDecl); is && fn.Body != nil {
			ast.Inspect(fn.Body, func(n ast.Node) bool { return x.visit(n) })
			x.returns(fn)
		}
	}
	return x.render(), x.all, nil
}

func (x *sites) offset(p token.Pos) int { return x.files.Position(p).Offset }

// site numbers a mutant.
func (x *sites) site(n ast.Node, what string) int {
	x.all = append(x.all, Site{Number: x.next, At: fmt.Sprintf("%s:%d", x.name, x.files.Position(n.Pos()).Line), What: what + ": " + x.text(n)})
	x.next++
	return x.next - 1
}

// text is the first line of what the node is.
func (x *sites) text(n ast.Node) string {
	line, _, _ := strings.Cut(string(x.src[x.offset(n.Pos()):x.offset(n.End())]), "\n")
	return line
}

// wrap puts text before and after a node. Of nodes that begin together the longest comes
// first, and ends last.
func (x *sites) wrap(n ast.Node, before, after string) {
	from, to := x.offset(n.Pos()), x.offset(n.End())
	x.edits = append(x.edits, edit{from, from, from - to, before}, edit{to, to, to - from - 1<<30, after})
}

func (x *sites) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		x.negate(n.Cond)
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					x.negate(e)
				}
			}
		}
	case *ast.BinaryExpr:
		x.compare(n)
	case *ast.BlockStmt:
		x.drops(n.List)
	case *ast.CaseClause:
		x.drops(n.Body)
	}
	return true
}

func (x *sites) negate(e ast.Expr) {
	x.wrap(e, fmt.Sprintf("mutantNot(%d, ", x.site(e, "negated")), ")")
}

func (x *sites) compare(e *ast.BinaryExpr) {
	name, ordered := comparisons[e.Op]
	if !ordered {
		return
	}
	x.wrap(e, fmt.Sprintf("%s(%d, ", name, x.site(e, "the limit belongs to the other side")), ")")
	at := x.offset(e.OpPos)
	x.edits = append(x.edits, edit{at, at + len(e.Op.String()), 0, ","})
}

// drops leaves out statements that do something and declare nothing.
func (x *sites) drops(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, is := s.X.(*ast.CallExpr); is && x.text(call.Fun) == "panic" {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.IncDecStmt:
		default:
			continue
		}
		x.wrap(s, fmt.Sprintf("if !mutantIs(%d) { ", x.site(s, "left out")), " }")
	}
}

// returns lets a function return zero values; what is true or false is negated.
func (x *sites) returns(fn *ast.FuncDecl) {
	if fn.Type.Results == nil {
		return
	}
	var zeros []string
	for _, r := range fn.Type.Results.List {
		for range max(len(r.Names), 1) {
			zeros = append(zeros, "*new("+string(x.src[x.offset(r.Type.Pos()):x.offset(r.Type.End())])+")")
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if _, nested := n.(*ast.FuncLit); nested {
			return false
		}
		r, is := n.(*ast.ReturnStmt)
		switch {
		case !is || len(r.Results) == 0 || !slices.ContainsFunc(r.Results, func(e ast.Expr) bool { return !x.zero(e) }):
		case len(zeros) == 1 && zeros[0] == "*new(bool)":
			x.negate(r.Results[0])
		default:
			x.wrap(r, fmt.Sprintf("if mutantIs(%d) { return %s }; ", x.site(r, "returns zero"), strings.Join(zeros, ", ")), "")
		}
		return true
	})
}

// zero tells whether an expression is the zero value anyway.
func (x *sites) zero(e ast.Expr) bool {
	switch text := x.text(e); text {
	case "nil", "0", `""`:
		return true
	default:
		return strings.HasSuffix(text, "{}")
	}
}

// render applies the edits.
func (x *sites) render() []byte {
	slices.SortStableFunc(x.edits, func(a, b edit) int { return cmp.Or(a.from-b.from, a.rank-b.rank) })
	var out []byte
	at := 0
	for _, e := range x.edits {
		out = append(out, x.src[at:e.from]...)
		out, at = append(out, e.text...), e.to
	}
	return append(out, x.src[at:]...)
}
