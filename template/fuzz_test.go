// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/virtloom/virtloom/template/render"
)

func sortKeys(keys []reflect.Value) {
	slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
}

// FuzzRender renders Pods of the corpus from mutated inputs. Rendering must return a valid Pod, or errors with the field at
// fault.
func FuzzRender(f *testing.F) {
	pods := corpus(f)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range pods {
		f.Add(append([]byte{byte(i >> 8), byte(i)}, randomBytes(rng, 4+i%40)...))
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		m := &mutator{choices: choices}
		p := mutant(m, pods)
		pod, err := p.render()
		if err != nil {
			for _, leaf := range leavesOf(err) {
				judgeLeaf(t, leaf)
			}
			return
		}
		for _, fault := range faultsOf(pod) {
			t.Errorf("%s: %s", p.name, fault)
		}
	})
}

// mutant returns a Pod of the corpus with a mutated input.
func mutant(m *mutator, pods []corpusPod) corpusPod {
	p := pods[m.of(max(len(pods), 257))%len(pods)]
	p.in = m.mutate(p.in)
	return p
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.UintN(256))
	}
	return b
}

// leavesOf returns the errors that an error is joined of.
func leavesOf(err error) (leaves []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			leaves = append(leaves, leavesOf(e)...)
		}
		return leaves
	}
	return []error{err}
}

func judgeLeaf(t *testing.T, leaf error) {
	t.Helper()
	e, ok := leaf.(*render.Error) //nolint:errorlint // the leaf itself must be one
	switch {
	case !ok:
		t.Errorf("%T is no *template.Error: %v", leaf, leaf)
	case e.Stage == "" || e.Object == "" || e.Field == "" && e.Err == nil:
		t.Errorf("error without stage, object or field: %#v", e)
	case errors.Is(e, render.ErrFieldOwned):
		t.Errorf("the stock stages conflict: %v", e)
	}
}
