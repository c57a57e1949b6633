// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

func TestSettings_Migrations(t *testing.T) {
	for name, tt := range map[string]struct {
		content string // of section migrations
		want    migration.Config
		queue   queue.Options
		aborts  bool
	}{
		"none": {
			content: "{}",
			want: migration.Config{
				Limits: queue.Limits{Inbound: 2}, Timeouts: migration.Timeouts{Pending: 24 * time.Hour}, PodsFollowGuests: true, Cooldown: 5 * time.Minute,
			},
			queue: queue.Options{AgeAfter: 10 * time.Minute},
		},
		"all": {
			content: "{inboundPerNode: 1, lent: -1, bandwidthPerNode: 1Mi, pendingTimeout: -1s, awaitNodes: 1m, cooldown: 1h, " +
				"ageAfter: -1s, unfair: true, namespaceWeights: {a: 2, b: 0.5}, abortBackups: true}",
			want: migration.Config{
				Limits:   queue.Limits{Inbound: 1, Lent: -1, Bandwidth: 1 << 20},
				Timeouts: migration.Timeouts{Pending: -time.Second}, PodsFollowGuests: true, AwaitNodes: time.Minute, Cooldown: time.Hour,
			},
			queue:  queue.Options{AgeAfter: -time.Second, Unfair: true, Weights: map[string]float64{"a": 2, "b": 0.5}},
			aborts: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := configfile.Read("f", []byte("apiVersion: "+configfile.APIVersion+"\nkind: ControllerConfiguration\nmigrations: "+tt.content))
			if err != nil {
				t.Fatal(err)
			}
			config, ok := c.(*configfile.ControllerConfiguration)
			if !ok {
				t.Fatalf("read %T", c)
			}
			if d := cmp.Diff(tt.want, settings(&config.Migrations)); d != "" {
				t.Errorf("settings (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.queue, queueOptions(&config.Migrations)); d != "" {
				t.Errorf("queue (-want +got):\n%s", d)
			}
			r, err := newReconciler(config, &rest.Config{Host: "https://example.test"})
			if err != nil {
				t.Fatal(err)
			}
			if r.LauncherImage != configfile.DefaultLauncherImage || (r.Backups != nil) != tt.aborts || r.Admission == nil {
				t.Errorf("the controller has %q, backups are aborted: %t", r.LauncherImage, r.Backups != nil)
			}
		})
	}
}

// The image of sidecars that name none reaches both controllers that render Pods.
func TestSidecarShimImage_Rendered(t *testing.T) {
	c, err := configfile.Read("f", []byte("apiVersion: "+configfile.APIVersion+"\nkind: ControllerConfiguration\nsidecarShimImage: mine/shim:v1\n"))
	if err != nil {
		t.Fatal(err)
	}
	config := c.(*configfile.ControllerConfiguration)
	moves, err := newReconciler(config, &rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if guests := newVMIs(config); guests.SidecarShimImage != "mine/shim:v1" || moves.SidecarShimImage != "mine/shim:v1" {
		t.Errorf("%q of guests, %q of migrations", guests.SidecarShimImage, moves.SidecarShimImage)
	}
}
