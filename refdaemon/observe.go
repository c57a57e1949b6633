// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unicode"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
)

// observer holds what commands have in common that look at a cluster and change nothing.
type observer struct {
	process
	migrations
	command       string
	output        string
	launcherImage string
	timeout       time.Duration
}

func (o *observer) flags(fs *flag.FlagSet) {
	fs.SetOutput(io.Discard) // errors are reported once, by main
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig `file`; empty uses the service account of the Pod")
	fs.StringVar(&o.output, "o", "text", "output `format`: text or json")
	fs.StringVar(&o.launcherImage, "launcher-image", defaultLauncherImage, "`image` of the guests' Pods, as the controller has it")
	fs.DurationVar(&o.timeout, "timeout", time.Minute, "`time` after which to give up")
	o.migrations.flags(fs)
}

// parse reads flags and arguments, in any order, and returns the arguments.
func (o *observer) parse(fs *flag.FlagSet, args []string, out io.Writer, usage string) ([]string, error) {
	var words []string
	for {
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintln(out, usage+"\n\nFlags:")
			fs.SetOutput(out)
			fs.PrintDefaults()
			return nil, err
		}
		if err != nil {
			return nil, o.wrong(err)
		}
		if fs.NArg() == 0 {
			break
		}
		words, args = append(words, fs.Arg(0)), fs.Args()[1:]
	}
	if o.output != "text" && o.output != "json" {
		return nil, o.wrong(fmt.Errorf("-o %s is unknown; use text or json", o.output))
	}
	if err := o.migrations.check(); err != nil {
		return nil, o.wrong(err)
	}
	return words, nil
}

func (o *observer) wrong(err error) error {
	return usageError{fmt.Errorf("%s: %w; refdaemon %[1]s -h tells how", o.command, err)}
}

// look lets a function look at the cluster with caches that are filled when it asks.
func (o *observer) look(ctx context.Context, do func(context.Context, *migrationctrl.Reconciler) error) error {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	o.name = o.command
	config, err := o.process.config()
	if err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	failed := &firstError{cancel: cancel}
	c, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(), DefaultWatchErrorHandler: failed.note,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	cached, err := client.New(config, client.Options{Scheme: scheme, Cache: &client.CacheOptions{Reader: c}})
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	r, err := o.reconciler(config)
	if err != nil {
		return err
	}
	r.Client, r.APIReader = cached, live
	if err := r.Observe(ctx, c); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	if !c.WaitForCacheSync(ctx) {
		err = fmt.Errorf("%s: the cluster could not be read within %s", o.command, o.timeout)
	} else {
		err = do(ctx, r)
	}
	cancel()
	if err != nil {
		err = failed.instead(err)
	}
	return errors.Join(err, <-ended)
}

// reconciler is the controller with the same settings, without clients.
func (o *observer) reconciler(c *rest.Config) (*migrationctrl.Reconciler, error) {
	backups, err := o.aborter(c)
	if err != nil {
		return nil, err
	}
	settings := o.migrations.config()
	return &migrationctrl.Reconciler{
		LauncherImage: o.launcherImage, Config: settings, Backups: backups,
		Admission: migration.NewAdmission(settings.WithDefaults().Limits, o.queue()),
	}, nil
}

// queue is how the flags tune the queue.
func (o *migrations) queue() migration.QueueOptions {
	return migration.QueueOptions{AgeAfter: o.ageAfter, Unfair: o.unfair, Weights: o.weights}
}

// firstError keeps why a cache could not be filled: whoever waits for it hears of it only
// by waiting in vain.
type firstError struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	err    error
}

func (f *firstError) note(_ context.Context, _ *toolscache.Reflector, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		f.cancel()
	}
}

// instead returns the cause, if there is one, instead of what came of it.
func (f *firstError) instead(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return fmt.Errorf("read the cluster: %w", f.err)
	}
	return err
}

// writer is a result with a form for people.
type writer interface{ Write(io.Writer) error }

// print writes a result in the format asked for.
func (o *observer) print(out io.Writer, result writer) error {
	if o.output == "text" {
		return result.Write(plain{out})
	}
	text, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", o.command, err)
	}
	_, err = out.Write(append(text, '\n'))
	return err
}

// plain writes text to a terminal. Users choose parts of it, such as values of selectors: what they write does not move
// the cursor.
type plain struct{ io.Writer }

// Write is part of io.Writer.
func (p plain) Write(text []byte) (int, error) {
	visible := func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return unicode.ReplacementChar
		}
		return r
	}
	if _, err := p.Writer.Write(bytes.Map(visible, text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

const observerRights = `It reads from a cluster and writes nothing. Needed are the rights to list and watch
virtualmachineinstances, virtualmachineinstancemigrations and kubevirts (kubevirt.io),
migrationpolicies (migrations.kubevirt.io), pods, nodes, namespaces, persistentvolumeclaims and
resourcequotas, which "refdaemon controller" has; to get configmaps and
network-attachment-definitions, if guests refer to some. The flags --migrations-... are those of the
controller: give them the values that it has.
Exit code 1 means that something was not found or could not be read, 2 that an argument is wrong.`
