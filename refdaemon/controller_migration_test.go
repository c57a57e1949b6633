// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/migration"
)

func TestFlagsOfMigrations(t *testing.T) {
	usual := migration.Config{
		Limits: migration.Limits{Inbound: 2}, Timeouts: migration.Timeouts{Pending: 24 * time.Hour}, Cooldown: 5 * time.Minute,
	}
	for name, tt := range map[string]struct {
		args []string
		want migration.Config
		err  string // what the error says; none if empty
	}{
		"none": {want: usual},
		"all": {
			args: strings.Fields("--migrations-inbound-per-node 1 --migrations-lent -1 --migrations-bandwidth-per-node 1Mi " +
				"--migrations-pending-timeout -1s --migrations-await-nodes 1m --migrations-cooldown 1h"),
			want: migration.Config{
				Limits:   migration.Limits{Inbound: 1, Lent: -1, Bandwidth: 1 << 20},
				Timeouts: migration.Timeouts{Pending: -time.Second}, AwaitNodes: time.Minute, Cooldown: time.Hour,
			},
		},
		"no way in":           {args: []string{"--migrations-inbound-per-node", "0"}, err: "--migrations-inbound-per-node 0"},
		"no quantity":         {args: []string{"--migrations-bandwidth-per-node", "fast"}, err: `--migrations-bandwidth-per-node "fast"`},
		"no bandwidth":        {args: []string{"--migrations-bandwidth-per-node", "-1"}, err: "above 0"},
		"weights":             {args: []string{"--migrations-namespace-weights", "a=2,b=0.5"}, want: usual},
		"no share":            {args: []string{"--migrations-namespace-weights", "a"}, err: "NAMESPACE=SHARE"},
		"a share of all":      {args: []string{"--migrations-namespace-weights", "a=inf"}, err: "NAMESPACE=SHARE"},
		"a share of no size":  {args: []string{"--migrations-namespace-weights", "a=nan"}, err: "NAMESPACE=SHARE"},
		"a share of nothing":  {args: []string{"--migrations-namespace-weights", "a=0"}, err: "above 0"},
		"a share of nobody's": {args: []string{"--migrations-namespace-weights", "=1"}, err: "NAMESPACE=SHARE"},
	} {
		t.Run(name, func(t *testing.T) {
			var o migrations
			fs := flag.NewFlagSet(name, flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			o.flags(fs)
			err := fs.Parse(tt.args)
			if err == nil {
				err = o.check()
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			if d := cmp.Diff(tt.want, o.config()); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
			if name == "weights" && (o.weights["a"] != 2 || o.weights["b"] != 0.5) {
				t.Errorf("weights are %v", o.weights)
			}
		})
	}
}
