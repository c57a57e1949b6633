// SPDX-License-Identifier: Apache-2.0

// Package apitest keeps what the packages of this module export as it was agreed on, in the files of folder api: a file for each
// package, a line for each thing that somebody may rely on. What changes the API changes these files, so that nobody does it
// unawares and a review shows it.
//
// A line that is gone is an incompatible change, one that is new a compatible one; the lines are made so that this holds:
//
//   - all methods of an interface are one line, as one more breaks those who implement it; unless nobody else can, because it
//     has methods that are not exported: then each has a line
//   - fields of a struct have a line each, with their tags, as the names in files are relied on as well
//   - a struct whose values can be compared has a line that says so
//   - names of parameters are left out
//
// The other way round, some lines change although nobody can notice: a method that needs a pointer no longer, for example.
package apitest

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
)

// Lines is what a package exports.
func Lines(pkg *types.Package) []string {
	s := surface{pkg: pkg, lines: []string{"package " + pkg.Name()}}
	for _, name := range pkg.Scope().Names() {
		if o := pkg.Scope().Lookup(name); o.Exported() {
			s.object(o)
		}
	}
	slices.Sort(s.lines[1:])
	return s.lines
}

type surface struct {
	pkg   *types.Package
	lines []string
}

func (s *surface) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *surface) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		s.add("const %s %s = %s", o.Name(), s.text(o.Type()), o.Val().ExactString())
	case *types.Var:
		s.add("var %s %s", o.Name(), s.text(o.Type()))
	case *types.Func:
		s.add("func %s%s", o.Name(), s.signature(o.Signature()))
	case *types.TypeName:
		s.typeName(o)
	}
}

func (s *surface) typeName(o *types.TypeName) {
	if a, ok := o.Type().(*types.Alias); ok {
		s.add("type %s%s = %s", o.Name(), s.parameters(a.TypeParams()), s.text(a.Rhs()))
		return
	}
	named, ok := o.Type().(*types.Named)
	if !ok {
		return
	}
	name := o.Name() + s.parameters(named.TypeParams())
	switch u := named.Underlying().(type) {
	case *types.Struct:
		s.fields(name, u)
	case *types.Interface:
		s.methods(name, u)
		return
	default:
		s.add("type %s %s", name, s.text(u))
	}
	s.methodSet(named)
}

func (s *surface) fields(name string, u *types.Struct) {
	s.add("type %s struct", name)
	if types.Comparable(u) {
		s.add("type %s struct, comparable", name)
	}
	for i := range u.NumFields() {
		f := u.Field(i)
		if !f.Exported() {
			continue
		}
		line := f.Name() + " " + s.text(f.Type())
		if f.Embedded() {
			line = "embedded " + s.text(f.Type())
		}
		if tag := u.Tag(i); tag != "" {
			line += " `" + tag + "`"
		}
		s.add("type %s struct, %s", name, line)
	}
}

func (s *surface) methods(name string, u *types.Interface) {
	if !u.IsMethodSet() {
		s.add("type %s %s", name, s.text(u))
		return
	}
	var exported []string
	for m := range u.Methods() {
		if m.Exported() {
			exported = append(exported, m.Name()+s.signature(m.Signature()))
		}
	}
	if len(exported) == u.NumMethods() {
		s.add("type %s interface { %s }", name, strings.Join(exported, "; "))
		return
	}
	s.add("type %s interface, of this package alone", name)
	for _, m := range exported {
		s.add("type %s interface, %s", name, m)
	}
}

// methodSet takes in methods of the type and of pointers to it, those of embedded fields among them.
func (s *surface) methodSet(named *types.Named) {
	values := types.NewMethodSet(named)
	for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if !m.Obj().Exported() {
			continue
		}
		star := "*"
		if values.Lookup(s.pkg, m.Obj().Name()) != nil {
			star = ""
		}
		if sig, ok := m.Type().(*types.Signature); ok {
			s.add("method (%s%s) %s%s", star, named.Obj().Name(), m.Obj().Name(), s.signature(sig))
		}
	}
}

func (s *surface) parameters(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var out []string
	for p := range list.TypeParams() {
		out = append(out, p.Obj().Name()+" "+s.text(p.Constraint()))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// signature is that of a function, without the word func.
func (s *surface) signature(sig *types.Signature) string {
	text := strings.TrimPrefix(s.text(sig), "func")
	return s.parameters(sig.TypeParams()) + text
}

func (s *surface) text(t types.Type) string {
	return types.TypeString(nameless(t), func(p *types.Package) string {
		if p == s.pkg {
			return ""
		}
		return p.Path()
	})
}

// nameless leaves out the names of parameters, of functions within the type as well.
func nameless(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		return types.NewSignatureType(nil, nil, nil, tuple(t.Params()), tuple(t.Results()), t.Variadic())
	case *types.Pointer:
		return types.NewPointer(nameless(t.Elem()))
	case *types.Slice:
		return types.NewSlice(nameless(t.Elem()))
	case *types.Array:
		return types.NewArray(nameless(t.Elem()), t.Len())
	case *types.Map:
		return types.NewMap(nameless(t.Key()), nameless(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), nameless(t.Elem()))
	}
	return t
}

func tuple(t *types.Tuple) *types.Tuple {
	var out []*types.Var
	for v := range t.Variables() {
		out = append(out, types.NewParam(v.Pos(), v.Pkg(), "", nameless(v.Type())))
	}
	return types.NewTuple(out...)
}
