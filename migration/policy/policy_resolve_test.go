// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/migration/internal/migrationfixture"
)

// byPolicy is a match that a policy with the spec has won; nil is one that none has.
func byPolicy(spec *v1alpha1.MigrationPolicySpec) Match {
	if spec == nil {
		return Match{}
	}
	p := policy("p", nil, nil)
	everybody := p.Spec.Selectors
	p.Spec = *spec
	p.Spec.Selectors = everybody
	return NewPolicies([]v1alpha1.MigrationPolicy{p}).Match(nil, nil)
}

func TestResolve(t *testing.T) {
	yes, no := new(true), new(false)
	bandwidth, more := resource.MustParse("64Mi"), resource.MustParse("1Gi")
	type spec = v1alpha1.MigrationPolicySpec
	type config = v1.MigrationConfiguration
	for name, tc := range map[string]struct {
		cluster *config
		spec    *spec
		// want holds what is asked for, in JSON.
		want string
	}{
		"S4.7 defaults": {want: `{"nodeDrainTaintKey":"kubevirt.io/drain","parallelOutboundMigrationsPerNode":2,"parallelMigrationsPerCluster":5,
			"allowAutoConverge":false,"completionTimeoutPerGiB":150,"maxDowntimeMs":900,"progressTimeout":150,"utilityVolumesTimeout":150,
			"unsafeMigrationOverride":false,"allowPostCopy":false,"allowWorkloadDisruption":false}`},
		"S14/89 postCopy true only":                    {spec: &spec{AllowPostCopy: yes}, want: `{"allowPostCopy":true,"allowWorkloadDisruption":true}`},
		"S14/89 postCopy false only":                   {spec: &spec{AllowPostCopy: no}, want: `{"allowPostCopy":false,"allowWorkloadDisruption":false}`},
		"S14/89 explicit disruption wins, false":       {spec: &spec{AllowPostCopy: yes, AllowWorkloadDisruption: no}, want: `{"allowPostCopy":true,"allowWorkloadDisruption":false}`},
		"S14/89 explicit disruption wins, true":        {spec: &spec{AllowPostCopy: no, AllowWorkloadDisruption: yes}, want: `{"allowPostCopy":false,"allowWorkloadDisruption":true}`},
		"S14/89 postCopy true over the cluster's word": {cluster: &config{AllowWorkloadDisruption: no}, spec: &spec{AllowPostCopy: yes}, want: `{"allowPostCopy":true,"allowWorkloadDisruption":true}`},
		"S14/89 postCopy false over the cluster's": {
			cluster: &config{AllowPostCopy: yes, AllowWorkloadDisruption: yes}, spec: &spec{AllowPostCopy: no}, want: `{"allowPostCopy":false,"allowWorkloadDisruption":false}`,
		},
		"disruption alone":                      {spec: &spec{AllowWorkloadDisruption: yes}, want: `{"allowPostCopy":false,"allowWorkloadDisruption":true}`},
		"cluster's post-copy allows disruption": {cluster: &config{AllowPostCopy: yes}, want: `{"allowPostCopy":true,"allowWorkloadDisruption":true}`},
		"policy over cluster": {
			cluster: &config{AllowAutoConverge: no, BandwidthPerMigration: &bandwidth, CompletionTimeoutPerGiB: new(int64(7))},
			spec:    &spec{AllowAutoConverge: yes, CompletionTimeoutPerGiB: new(int64(0)), MaxDowntimeMs: new(uint64(5))},
			want:    `{"allowAutoConverge":true,"bandwidthPerMigration":"64Mi","completionTimeoutPerGiB":0,"maxDowntimeMs":5}`,
		},
		"policy's bandwidth": {cluster: &config{BandwidthPerMigration: &bandwidth}, spec: &spec{BandwidthPerMigration: &more}, want: `{"bandwidthPerMigration":"1Gi"}`},
		"experimental options": {
			spec: &spec{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{StallDetector: &v1.StallDetectorOptions{StallMargin: new(int64(7))}}},
			want: `{"experimental":{"stallDetector":{"stallMargin":7}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.cluster.DeepCopy()
			m := byPolicy(tc.spec)
			r, err := Resolve(m, tc.cluster)
			if err != nil {
				t.Fatal(err)
			}
			got, want := asJSON(t, r.Options), map[string]any{}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			for field := range got {
				if _, asked := want[field]; !asked && !strings.HasPrefix(name, "S4.7") {
					delete(got, field)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if d := cmp.Diff(before, tc.cluster); d != "" {
				t.Errorf("the cluster's configuration was changed:\n%s", d)
			}
		})
	}
}

func asJSON(t *testing.T, o any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// The fields by the specification, section 6: what a policy may override.
var overridable = []string{
	"allowAutoConverge", "bandwidthPerMigration", "completionTimeoutPerGiB", "maxDowntimeMs", "allowPostCopy", "allowWorkloadDisruption", "experimental",
}

// specDefaults are those of section 4.7, as far as they are no absence.
var specDefaults = map[string]any{
	"nodeDrainTaintKey": "kubevirt.io/drain", "parallelOutboundMigrationsPerNode": 2., "parallelMigrationsPerCluster": 5.,
	"allowAutoConverge": false, "completionTimeoutPerGiB": 150., "maxDowntimeMs": 900., "progressTimeout": 150.,
	"utilityVolumesTimeout": 150., "unsafeMigrationOverride": false, "allowPostCopy": false,
}

// resolveOracle reads sections 4.7 and 6 sentence by sentence, on JSON.
func resolveOracle(t *testing.T, cluster *v1.MigrationConfiguration, spec *v1alpha1.MigrationPolicySpec) map[string]any {
	t.Helper()
	out := map[string]any{}
	merge(out, specDefaults)
	// "Base: cluster MigrationConfiguration copied field by field."
	if cluster != nil {
		merge(out, asJSON(t, cluster))
	}
	if spec != nil {
		p := asJSON(t, spec)
		_, disrupts := p["allowWorkloadDisruption"]
		for _, field := range overridable {
			if v, set := p[field]; set {
				merge(out, map[string]any{field: v}) // "merged per leaf"
			}
		}
		// "If the policy sets allowPostCopy but not allowWorkloadDisruption, the latter follows the former."
		if v, set := p["allowPostCopy"]; set && !disrupts {
			out["allowWorkloadDisruption"] = v
		}
	}
	// "follows allowPostCopy unless set"
	if _, set := out["allowWorkloadDisruption"]; !set {
		out["allowWorkloadDisruption"] = out["allowPostCopy"]
	}
	return out
}

func merge(to, from map[string]any) {
	for k, v := range from {
		if block, is := v.(map[string]any); is {
			below, _ := to[k].(map[string]any)
			if below == nil {
				below = map[string]any{}
			}
			merge(below, block)
			v = below
		}
		to[k] = v
	}
}

func TestResolve_AgreesWithOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	for range max(*policyCases/20, 1000) {
		resolveAgrees(t, rng)
	}
}

func resolveAgrees(t *testing.T, rng *rand.Rand) {
	t.Helper()
	var cluster *v1.MigrationConfiguration
	var spec *v1alpha1.MigrationPolicySpec
	if rng.IntN(8) > 0 {
		cluster = &v1.MigrationConfiguration{}
		migrationfixture.Fill(rng, reflect.ValueOf(cluster).Elem())
	}
	if rng.IntN(8) > 0 {
		spec = &v1alpha1.MigrationPolicySpec{}
		migrationfixture.Fill(rng, reflect.ValueOf(spec).Elem())
	}
	r, err := Resolve(byPolicy(spec), cluster)
	if err != nil {
		t.Fatalf("%v; policy %+v", err, spec)
	}
	if diff := cmp.Diff(resolveOracle(t, cluster, spec), asJSON(t, r.Options)); diff != "" {
		t.Fatalf("options (-want +got):\n%s\ncluster %+v\npolicy %+v", diff, asJSON(t, cluster), asJSON(t, spec))
	}
}

func FuzzResolve(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, ^seed)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) { resolveAgrees(t, rand.New(rand.NewPCG(a, b))) })
}

// TestOverlay_EveryField fails when KubeVirt's API gets a field that is not.
func TestOverlay_EveryField(t *testing.T) {
	all := map[reflect.Type][]string{
		reflect.TypeFor[v1alpha1.MigrationPolicySpec]():    append([]string{"selectors"}, overridable...),
		reflect.TypeFor[v1.ExperimentalMigrationOptions](): {"stallDetector", "compression"},
		reflect.TypeFor[v1.StallDetectorOptions](): {
			"stallMargin", "ewmaAlpha", "stallProgressTimeout", "switchoverTimeout", "precopyPossibleFactor", "patienceWindowDecayFactor", "searchLocalMinima", "completionTimeoutFactor",
		},
	}
	for typ, known := range all {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if !slices.Contains(known, name) {
				t.Errorf("%s.%s is not merged", typ.Name(), name)
			}
		}
	}
}

func TestBudget_GrowsWithMemory(t *testing.T) {
	r, err := Resolve(Match{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	size := func(s string) *v1.VirtualMachineInstance {
		q := resource.MustParse(s)
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: &q}
		return vmi
	}
	for memory, want := range map[string]time.Duration{
		"256Mi": 300*time.Second + 150*time.Second + 5*time.Minute,
		"4Gi":   5*300*time.Second + 150*time.Second + 5*time.Minute, // 4.29 GB, rounded up
	} {
		if got := r.Budget(size(memory)); got != want {
			t.Errorf("%s: budget %s, want %s", memory, got, want)
		}
	}
	large := size("1Gi")
	for range 2 { // more than an int64 holds
		large.Status.MigratedVolumes = append(large.Status.MigratedVolumes, v1.StorageMigratedVolumeInfo{
			SourcePVCInfo: &v1.PersistentVolumeClaimInfo{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("7E")}},
		})
	}
	if got := r.Budget(large); got != 0 && got < 1000*time.Hour {
		t.Errorf("budget is %s for volumes of 14 EB", got)
	}
	*r.Options.CompletionTimeoutPerGiB = 0
	if got := r.Budget(size("1Gi")); got != 0 {
		t.Errorf("budget is %s without a completion timeout, want none", got)
	}
}

func TestBudget_CoversNodeTimeout(t *testing.T) {
	const base, ends = 150 * time.Second, 150*time.Second + 5*time.Minute
	for name, tc := range map[string]struct {
		factor *string
		want   time.Duration
	}{
		"no stall detector of one's own": {nil, 2*base + ends},
		"a smaller factor":               {new("1.5"), 2*base + ends}, // a node with no stall detector doubles
		"a larger one":                   {new("10"), 10*base + ends},
		"one beyond what a node takes":   {new("1e300"), 100*base + ends},
		"no number":                      {new("NaN"), 2*base + ends},
		"a word":                         {new("ten"), 2*base + ends},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Resolve(Match{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Options.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{StallDetector: &v1.StallDetectorOptions{CompletionTimeoutFactor: tc.factor}}
			if got := r.Budget(&v1.VirtualMachineInstance{}); got != tc.want {
				t.Errorf("budget is %s, want %s", got, tc.want)
			}
		})
	}
}
