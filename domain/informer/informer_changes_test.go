// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
)

// changeText returns a change in a few words.
func changeText(c informer.Change) string {
	word := func(s *domain.State) string {
		if s == nil {
			return "none"
		}
		return string(s.Status)
	}
	return c.Name + ": " + word(c.Old) + " to " + word(c.New)
}

// fetch receives the changes that wait for a watcher.
func fetch(ch <-chan informer.Change) []string {
	var out []string
	for {
		synctest.Wait()
		select {
		case c, ok := <-ch:
			if !ok {
				return append(out, "closed")
			}
			out = append(out, changeText(c))
		default:
			return out
		}
	}
}

// endsWithout reports whether the changes of a domain that existed for a moment are right: it may have been seen meanwhile.
func endsWithout(changes []string, domain string) bool {
	mine := slices.DeleteFunc(slices.Clone(changes), func(c string) bool { return !strings.HasPrefix(c, domain+": ") })
	seen := []string{domain + ": none to Running", domain + ": Running to none"}
	return slices.Equal(mine, seen) || slices.Equal(mine, []string{domain + ": none to none"})
}

func TestInformerWatch_MergesChanges(t *testing.T) {
	withInformer(t, func(in *informed) {
		in.apply(domain.Start, "b")
		in.apply(domain.Start, "a")
		synctest.Wait()
		ch := in.Informer.Watch(in.Context())
		wants := func(want ...string) {
			in.Helper()
			got := fetch(ch)
			slices.Sort(got) // reads of different domains do not wait for each other
			if diff := cmp.Diff(want, got); diff != "" {
				in.Errorf("changes (-want +got):\n%s", diff)
			}
		}
		wants("a: none to Running", "b: none to Running")
		in.apply(domain.Suspend, "a")
		wants("a: Running to Paused")

		// The stream offers the first already when the others come.
		for _, verb := range []domain.Verb{domain.Resume, domain.Destroy, domain.Start, domain.Suspend} {
			in.apply(verb, "a")
			synctest.Wait()
		}
		in.apply(domain.Suspend, "b")
		wants("a: Paused to Running", "a: Running to Paused", "b: Running to Paused")

		in.apply(domain.SetMetadata, "b")
		wants("b: Paused to Paused")
		in.apply(domain.Start, "c")
		in.Vanish("c")
		in.PowerOff("b")
		time.Sleep(informer.DefaultResync)
		if got := fetch(ch); !slices.Contains(got, "b: Paused to Shutoff") || !endsWithout(got, "c") {
			in.Errorf("changes are %q", got)
		}
		if err := in.stop(); err != nil {
			in.Error(err)
		}
		wants("closed")
		if diff := cmp.Diff([]string{"a: none to Paused", "b: none to Shutoff", "closed"}, fetch(in.Informer.Watch(in.Context()))); diff != "" {
			in.Errorf("of an informer that has ended (-want +got):\n%s", diff)
		}
	})
}
