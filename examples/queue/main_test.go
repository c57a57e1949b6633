// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/virtloom/virtloom/migration/queue"
)

func TestRun_ExampleRequests(t *testing.T) {
	in, err := os.Open("requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out strings.Builder
	if err := run(t.Context(), []string{"--share", "shop=2", "--down", "quay.io"}, in, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		"build bank/audit for docker.io", // urgent
		"build shop/web for docker.io",   // then by turns, two of the shop's for one of another's
		"build bank/ledger for docker.io",
		"build lab/kernel for docker.io",
		"build shop/cart for docker.io",
		"build shop/mail for docker.io",
		"lab/notebook waits for quay.io",
		"shop/search waits for quay.io",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestWork_Capacity(t *testing.T) {
	o := options{builders: 3}
	q, err := read(strings.NewReader(strings.Repeat("a one r\n", 2)+"a two r\na three r\na fails r\nb one r\nb two r\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	var now, most, all atomic.Int64
	var once sync.Once
	together := make(chan struct{}) // closed when as many build as may
	failing := errors.New("no space left")
	err = work(t.Context(), q, o, func(ctx context.Context, it queue.Item) error {
		n := now.Add(1)
		defer now.Add(-1)
		all.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		if n == 3 {
			once.Do(func() { close(together) })
		}
		select {
		case <-together:
		case <-ctx.Done():
		}
		if it.Key.Name == "fails" {
			return failing
		}
		return nil
	})
	if most.Load() != 3 || all.Load() != 6 || q.Len() != 0 {
		t.Errorf("%d builds, %d at a time, %d wait; want 6, 3, 0", all.Load(), most.Load(), q.Len())
	}
	if !errors.Is(err, failing) || !strings.Contains(err.Error(), "build a/fails") {
		t.Errorf("error is %v, want the one of a/fails", err)
	}
}

func TestRead_InvalidInput(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		in   string
		want string
	}{
		"too few words":    {nil, "shop web", `"shop web": want a tenant`},
		"too many words":   {nil, "a b c 1 2", "want a tenant"},
		"no priority":      {nil, "a b c soon", `"soon" is no number`},
		"priority too far": {nil, "a b c 101", `"101" is no number`},
		"no builders":      {[]string{"--builders", "0"}, "", "--builders 0"},
		"no share":         {[]string{"--share", "shop"}, "", "invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(t.Context(), tt.args, strings.NewReader(tt.in), &out)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestWork_Canceled(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	o := options{builders: 1}
	q, err := read(strings.NewReader("a one r\na two r\na three r\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	err = work(ctx, q, o, func(ctx context.Context, _ queue.Item) error {
		stop()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || q.Len() != 2 {
		t.Errorf("%d wait, error %v; want 2 and that it was stopped", q.Len(), err)
	}
}
