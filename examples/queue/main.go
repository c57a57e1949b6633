// SPDX-License-Identifier: Apache-2.0

// Command queue builds images, and has nothing to do with virtual machines: it
// uses nothing but the queue of package migration.
//
// Requests come from standard input, one per line: tenant, image, registry, and
// optionally a priority from 0 to 100. Tenants take turns by their shares, urgent
// builds go first, and what waits for ten minutes becomes more urgent. A registry is
// a lane of the queue: what is for one that is down (--down) is passed over, and
// listed in the end.
//
//	go run ./examples/queue --builders 2 --share shop=2 --down quay.io < examples/queue/requests.txt
//
// A function builds an image; the one here only prints what it builds.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration/queue"
)

// options are the flags.
type options struct {
	builders int
	down     string
	shares   map[string]float64
}

// parse reads a request.
func parse(line string) (it queue.Item, err error) {
	words := strings.Fields(line)
	if len(words) < 3 || len(words) > 4 {
		return it, fmt.Errorf("%q: want a tenant, an image, a registry and perhaps a priority", line)
	}
	it.Key, it.Lane = types.NamespacedName{Namespace: words[0], Name: words[1]}, words[2]
	if len(words) == 4 {
		if it.Priority, err = strconv.Atoi(words[3]); err != nil || it.Priority < 0 || it.Priority > 100 {
			return it, fmt.Errorf("%q: priority %q is no number from 0 to 100", line, words[3])
		}
	}
	return it, nil
}

// read returns a queue with all requests; what is asked for twice is built once.
func read(in io.Reader, o options) (*queue.Queue, error) {
	q := queue.NewQueue(queue.Options{Weights: o.shares})
	q.Block(o.down)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		it, err := parse(line)
		if err != nil {
			return nil, err
		}
		q.Add(it)
	}
	return q, lines.Err()
}

// work builds what can be built, with so many builders, and returns what failed.
func work(ctx context.Context, q *queue.Queue, o options, build func(context.Context, queue.Item) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var left atomic.Int64
	for _, it := range q.Snapshot() {
		if it.Lane != o.down {
			left.Add(1)
		}
	}
	if left.Load() == 0 {
		return nil
	}
	failures := make([]error, o.builders)
	var builders sync.WaitGroup
	for i := range o.builders {
		builders.Go(func() {
			for {
				it, err := q.Get(ctx) // the next one, in order; no other builder has it until Done
				if err != nil {
					return
				}
				if err := build(ctx, it); err != nil {
					failures[i] = errors.Join(failures[i], fmt.Errorf("build %s: %w", it.Key, err))
				}
				q.Done(it.Key)
				if left.Add(-1) == 0 {
					stop()
				}
			}
		})
	}
	builders.Wait()
	return errors.Join(failures...)
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	o := options{shares: map[string]float64{}}
	fs := flag.NewFlagSet("queue", flag.ContinueOnError)
	fs.IntVar(&o.builders, "builders", 1, "`number` of builds at a time")
	fs.StringVar(&o.down, "down", "", "`registry` to which nothing can be pushed now")
	fs.Func("share", "`tenant=weight`: the share of a tenant, 1 unless given", func(text string) (err error) {
		tenant, weight, _ := strings.Cut(text, "=")
		o.shares[tenant], err = strconv.ParseFloat(weight, 64)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if o.builders < 1 {
		return fmt.Errorf("--builders %d: at least one has to build", o.builders)
	}
	q, err := read(in, o)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	err = work(ctx, q, o, func(_ context.Context, it queue.Item) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintf(out, "build %s for %s\n", it.Key, it.Lane)
		return err
	})
	for _, it := range q.Snapshot() {
		_, _ = fmt.Fprintf(out, "%s waits for %s\n", it.Key, it.Lane)
	}
	return err
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
