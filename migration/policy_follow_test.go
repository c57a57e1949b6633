// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/internal/migrationfixture"
)

func TestOptions_Follow(t *testing.T) {
	yes, no := new(true), new(false)
	quantity := func(text string) *resource.Quantity { q := resource.MustParse(text); return &q }
	stall := func(margin int64) *v1.ExperimentalMigrationOptions {
		return &v1.ExperimentalMigrationOptions{StallDetector: &v1.StallDetectorOptions{StallMargin: &margin}}
	}
	zstd := v1.MigrationCompressionZstd
	for name, tc := range map[string]struct {
		inForce, wanted options
		// before and while are the changes until it begins, and while it moves.
		before, while []string
	}{
		"nothing":                  {},
		"bandwidth":                {options{BandwidthPerMigration: quantity("4Mi")}, options{BandwidthPerMigration: quantity("64Mi")}, []string{"bandwidthPerMigration 4Mi → 64Mi"}, []string{"bandwidthPerMigration 4Mi → 64Mi"}},
		"bandwidth in other words": {options{BandwidthPerMigration: quantity("1Mi")}, options{BandwidthPerMigration: quantity("1024Ki")}, nil, nil},
		"no limit in other words":  {options{}, options{BandwidthPerMigration: quantity("0")}, nil, nil},
		"bandwidth without limit":  {options{BandwidthPerMigration: quantity("4Mi")}, options{}, []string{"bandwidthPerMigration 4Mi → 0"}, []string{"bandwidthPerMigration 4Mi → 0"}},
		"downtime":                 {options{MaxDowntimeMs: new(uint64(900))}, options{MaxDowntimeMs: new(uint64(5))}, []string{"maxDowntimeMs 900 → 5"}, []string{"maxDowntimeMs 900 → 5"}},
		"completion timeout":       {options{CompletionTimeoutPerGiB: new(int64(9))}, options{CompletionTimeoutPerGiB: new(int64(0))}, []string{"completionTimeoutPerGiB 9 → 0"}, []string{"completionTimeoutPerGiB 9 → 0"}},
		"progress timeout":         {options{}, options{ProgressTimeout: new(int64(1))}, []string{"progressTimeout unset → 1"}, []string{"progressTimeout unset → 1"}},
		"disruption":               {options{AllowWorkloadDisruption: no}, options{AllowWorkloadDisruption: yes}, []string{"allowWorkloadDisruption false → true"}, []string{"allowWorkloadDisruption false → true"}},
		"post-copy withdrawn":      {options{AllowPostCopy: yes}, options{AllowPostCopy: no}, []string{"allowPostCopy true → false"}, []string{"allowPostCopy true → false"}},
		"post-copy given":          {options{AllowPostCopy: no}, options{AllowPostCopy: yes}, []string{"allowPostCopy false → true"}, nil},
		"post-copy and what it means": {options{AllowPostCopy: no, AllowWorkloadDisruption: no}, options{AllowPostCopy: yes, AllowWorkloadDisruption: yes, ProgressTimeout: new(int64(1))},
			[]string{"progressTimeout unset → 1", "allowPostCopy false → true", "allowWorkloadDisruption false → true"}, []string{"progressTimeout unset → 1"}},
		"stall detector":          {options{}, options{ExperimentalMigrationOptions: stall(1)}, []string{"experimental.stallDetector off → on"}, []string{"experimental.stallDetector off → on"}},
		"stall detector, a leaf":  {options{ExperimentalMigrationOptions: stall(2)}, options{ExperimentalMigrationOptions: stall(1)}, []string{"experimental.stallDetector (in part)"}, []string{"experimental.stallDetector (in part)"}},
		"auto-converge":           {options{AllowAutoConverge: no}, options{AllowAutoConverge: yes}, []string{"allowAutoConverge false → true"}, nil},
		"compression":             {options{}, options{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{Compression: &zstd}}, []string{"experimental.compression unset → zstd"}, nil},
		"unsafe":                  {options{}, options{UnsafeMigrationOverride: yes}, []string{"unsafeMigrationOverride unset → true"}, nil},
		"what the target goes by": {options{}, options{Network: new("net"), DisableTLS: yes, MatchSELinuxLevelOnMigration: yes}, nil, nil},
		"what is not the job's":   {options{}, options{NodeDrainTaintKey: new("x"), ParallelMigrationsPerCluster: new(uint32(1)), ParallelOutboundMigrationsPerNode: new(uint32(1)), UtilityVolumesTimeout: new(int64(1))}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for begun, want := range map[bool][]string{false: tc.before, true: tc.while} {
				inForce, wanted := tc.inForce.DeepCopy(), tc.wanted.DeepCopy()
				next, changes := followed(inForce, wanted, begun)
				if diff := cmp.Diff(want, changes); diff != "" {
					t.Errorf("begun %t: changes (-want +got):\n%s", begun, diff)
				}
				if len(want) == 0 && !cmp.Equal(inForce, next) {
					t.Errorf("begun %t: without a change the options are %+v", begun, next)
				}
				if _, again := followed(next, wanted, begun); len(again) > 0 {
					t.Errorf("begun %t: it changes again: %v", begun, again)
				}
				if !cmp.Equal(inForce, &tc.inForce) || !cmp.Equal(wanted, &tc.wanted) {
					t.Errorf("begun %t: the arguments were changed: %+v, %+v", begun, inForce, wanted)
				}
			}
		})
	}
}

// TestFollowing_Converges: whatever is in force and wanted, one change is enough, and what
// does not follow is as it was.
func TestFollowing_Converges(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 5000 {
		inForce, wanted, begun := &options{}, &options{}, rng.IntN(2) == 0
		migrationfixture.Fill(rng, reflect.ValueOf(inForce).Elem())
		migrationfixture.Fill(rng, reflect.ValueOf(wanted).Elem())
		next, _ := followed(inForce, wanted, begun)
		if _, again := followed(next, wanted, begun); len(again) > 0 {
			t.Fatalf("it changes again: %v; in force %+v, wanted %+v", again, inForce, wanted)
		}
		for _, field := range []string{"Network", "DisableTLS", "MatchSELinuxLevelOnMigration", "UtilityVolumesTimeout", "NodeDrainTaintKey"} {
			was, is := reflect.ValueOf(*inForce).FieldByName(field), reflect.ValueOf(*next).FieldByName(field)
			if !cmp.Equal(was.Interface(), is.Interface()) {
				t.Fatalf("%s has changed", field)
			}
		}
	}
}

func TestFollowing_EveryOption(t *testing.T) {
	const not = "network disableTLS matchSELinuxLevelOnMigration utilityVolumesTimeout parallelMigrationsPerCluster parallelOutboundMigrationsPerNode nodeDrainTaintKey experimental"
	o := &options{}
	var names []string
	for _, f := range following {
		want := &options{}
		v := reflect.ValueOf(want).Elem()
		rng := rand.New(rand.NewPCG(1, 2))
		for reflect.DeepEqual(want, o) || f.follow(&options{}, want) == "" {
			migrationfixture.Fill(rng, v)
		}
		name, _, _ := strings.Cut(f.follow(&options{}, want), " ")
		names = append(names, name)
	}
	for i := range reflect.TypeFor[options]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[options]().Field(i).Tag.Get("json"), ",")
		if slices.Contains(names, name) == slices.Contains(strings.Fields(not), name) {
			t.Errorf("%s follows, or does not: nobody knows", name)
		}
	}
}
