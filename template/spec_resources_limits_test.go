// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

const huge = "9223372036854775807"

// extra is an OverheadCalculator of one term.
type extra struct{ q resource.Quantity }

func (e extra) Overhead(template.Input) []render.Term {
	return []render.Term{{Name: "extra", Amount: e.q, From: "Config.Extra"}}
}

// No amount overflows: an excessive size is rejected with its field.
func TestComputeResources_ExcessiveSizes(t *testing.T) {
	const topology, dedicated = "spec.domain.cpu", true
	for name, tc := range map[string]struct {
		vmi    change
		config func(*template.Input)
		field  string
	}{
		"guest of all 64 bits": {guest(huge), nil, "spec.domain.memory.guest"},
		"guest beyond 64 bits": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Memory = &v1.Memory{Guest: resource.NewScaledQuantity(math.MaxInt64, resource.Exa)}
		}, nil, "spec.domain.memory.guest"},
		"guest just above the largest":      {guest("1152921504606846977"), nil, "spec.domain.memory.guest"},
		"the largest guest has no room":     {guest("1Ei"), nil, "spec.domain.memory.guest"},
		"request":                           {requests("memory", huge), nil, "spec.domain.resources.requests.memory"},
		"request of the largest":            {requests("memory", "1Ei"), nil, "spec.domain.resources.requests.memory"},
		"limit":                             {limits("memory", huge), nil, "spec.domain.resources.limits.memory"},
		"page size":                         {hugepages(huge), nil, "spec.domain.memory.hugepages.pageSize"},
		"reserved":                          {changes(guest("1Gi"), reserved(huge)), nil, "spec.domain.memory.reservedOverhead.addedOverhead"},
		"reserved of the largest":           {changes(guest("1Gi"), reserved("1Ei")), nil, "spec.domain.memory.reservedOverhead.addedOverhead"},
		"storage":                           {requests("ephemeral-storage", huge), nil, "spec.domain.resources.requests[ephemeral-storage]"},
		"storage limit":                     {limits("ephemeral-storage", huge), nil, "spec.domain.resources.limits[ephemeral-storage]"},
		"storage of the largest":            {requests("ephemeral-storage", "1Ei"), nil, "spec.domain.resources.requests[ephemeral-storage]"},
		"cores":                             {cores(math.MaxUint32), nil, topology},
		"topology beyond 64 bits":           {cpu(v1.CPU{Cores: math.MaxUint32, Sockets: math.MaxUint32, Threads: math.MaxUint32}), nil, topology},
		"topology that wraps to a few":      {cpu(v1.CPU{Cores: 1 << 31, Sockets: 1 << 31, Threads: 1 << 2, DedicatedCPUPlacement: dedicated}), nil, topology},
		"I/O threads":                       {changes(cores(1), supplementalThreads(math.MaxUint32)), nil, "spec.domain.ioThreads.supplementalPoolThreadCount"},
		"CPUs and I/O threads":              {changes(cpu(v1.CPU{Cores: 1 << 20, DedicatedCPUPlacement: dedicated}), supplementalThreads(1<<20)), nil, topology},
		"CPU request":                       {requests("cpu", huge), nil, "spec.domain.resources.requests.cpu"},
		"CPU limit":                         {limits("cpu", huge), nil, "spec.domain.resources.limits.cpu"},
		"overcommit far below 100":          {guest("512Pi"), overcommit(1), "Config.MemoryOvercommit"},
		"ratio of the overhead":             {guest("1Gi"), ratio("1e300"), "Config.AdditionalGuestMemoryOverheadRatio"},
		"negative ratio of the overhead":    {guest("1Gi"), ratio("-1"), "Config.AdditionalGuestMemoryOverheadRatio"},
		"ratio that takes all the overhead": {guest("1Gi"), ratio("0"), "Config.AdditionalGuestMemoryOverheadRatio"},
		"ratio of limits":                   {guest("1Gi"), quota("1e300", list("limits.memory", "1Gi")), "Facts.NamespaceLabels[alpha.kubevirt.io/auto-memory-limits-ratio]"},
		"infinite ratio of limits":          {guest("1Gi"), quota("+Inf", list("limits.memory", "1Gi")), "Facts.NamespaceLabels[alpha.kubevirt.io/auto-memory-limits-ratio]"},

		"negative reserve":     {changes(guest("1Gi"), reserved("-1Gi")), nil, "spec.domain.memory.reservedOverhead.addedOverhead"},
		"negative storage":     {requests("ephemeral-storage", "-1"), nil, "spec.domain.resources.requests[ephemeral-storage]"},
		"negative other":       {limits("x.com/y", "-1"), nil, "spec.domain.resources.limits[x.com/y]"},
		"storage over limit":   {changes(requests("ephemeral-storage", "2G"), limits("ephemeral-storage", "1G")), nil, "spec.domain.resources.requests[ephemeral-storage]"},
		"impossible resource":  {requests("a b", "1"), nil, "spec.domain.resources.requests[a b]"},
		"page size, signed":    {hugepages("+1Gi"), nil, "spec.domain.memory.hugepages.pageSize"},
		"parts of CPUs":        {changes(isolated(0), requests("cpu", "1500m"), limits("cpu", "1500m")), nil, "spec.domain.resources.requests.cpu"},
		"unequal whole CPUs":   {changes(isolated(0), requests("cpu", "1"), limits("cpu", "2")), nil, "spec.domain.resources.requests.cpu"},
		"negative CPU request": {requests("cpu", "-1"), nil, "spec.domain.resources.requests.cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(tc.vmi))
			if tc.config != nil {
				tc.config(&in)
			}
			_, err := template.ComputeResources(in)
			wantError(t, err, tc.field, render.ErrInvalid)
			_, err = preset(t).Launcher(in)
			wantError(t, err, tc.field, render.ErrInvalid)
		})
	}
}

func TestComputeResources_LargeSizes(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi              change
		requests, limits string
	}{
		"half the largest guest":     {changes(cores(1), guest("512Pi")), "cpu=100m memory=576460752605413376", ""},
		"the largest hugepages":      {changes(cores(1), guest("1Ei"), hugepages("1Gi")), "cpu=100m memory=288Mi hugepages-1Gi=1Ei", "hugepages-1Gi=1Ei"},
		"a million CPUs":             {changes(cores(1<<20), guest("1Gi")), "cpu=104857600m memory=8389912Mi", ""},
		"a million dedicated CPUs":   {changes(cpu(v1.CPU{Cores: 1<<20 - 1, DedicatedCPUPlacement: true, IsolateEmulatorThread: true}), guest("1Gi")), "cpu=1048576 memory=8390004Mi", "cpu=1048576 memory=8390004Mi"},
		"a million threads of CPUs":  {changes(cores(0), guest("1Gi"), supplementalThreads(1<<20)), "cpu=104857600m memory=1312Mi", ""},
		"a request of half the most": {requests("memory", "512Pi"), "cpu=100m memory=577586652512256001", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := computed(t, presetInput(newVMI(tc.vmi)))
			wantAmounts(t, "request", tc.requests+" ephemeral-storage=50M", r.Requests)
			wantAmounts(t, "limit", tc.limits, r.Limits)
		})
	}
}

func TestMemoryOverhead_CalculatorsBounded(t *testing.T) {
	in := presetInput(newVMI(guest("1Gi")))
	for name, tc := range map[string]struct {
		more  []template.OverheadCalculator
		bytes int64
		field string
	}{
		"ordinary":        {[]template.OverheadCalculator{extra{resource.MustParse("1Mi")}}, 303038464, ""},
		"parts of a byte": {[]template.OverheadCalculator{extra{resource.MustParse("1500m")}}, 301989890, ""},
		"too large":       {[]template.OverheadCalculator{extra{resource.MustParse(huge)}, extra{resource.MustParse(huge)}}, 301989888 + 2<<60, "Config.Extra"},
		"negative":        {[]template.OverheadCalculator{extra{resource.MustParse("-1Gi")}}, 301989888 - 1<<30, "Config.Extra"},
		"far too negative": {[]template.OverheadCalculator{extra{resource.MustParse("-" + huge)}, extra{resource.MustParse("-" + huge)}},
			301989888 - 2<<60, "Config.Extra"},
		"endless":          {slices.Repeat([]template.OverheadCalculator{extra{resource.MustParse(huge)}}, 50), 3 << 60, "Config.Extra"},
		"endless negative": {slices.Repeat([]template.OverheadCalculator{extra{resource.MustParse("-" + huge)}}, 50), -3 << 60, "Config.Extra"},
	} {
		t.Run(name, func(t *testing.T) {
			o := template.MemoryOverhead(in, tc.more...)
			if sum := render.Sum(o.Terms); sum.CmpInt64(o.Bytes) != 0 || o.Bytes != tc.bytes {
				t.Errorf("overhead %d, want %d; its terms sum up to %s", o.Bytes, tc.bytes, sum.String())
			}
			r, err := template.ComputeResources(in, tc.more...)
			if tc.field != "" {
				wantError(t, err, tc.field, render.ErrInvalid)
				return
			}
			if err != nil || r.Overhead.Bytes != tc.bytes {
				t.Errorf("overhead %d, error %v", r.Overhead.Bytes, err)
			}
		})
	}
}

func TestComputeResources_InputUnchanged(t *testing.T) {
	vmi := func() *v1.VirtualMachineInstance {
		return newVMI(isolated(0), requests("memory", "1500m", "cpu", "3", "ephemeral-storage", "1G"), limits("cpu", "3", "ephemeral-storage", "2G"),
			guest("1Gi"), hugepages("2Mi"), reserved("1.5Gi"), parity)
	}
	in := presetInput(vmi())
	want, err := template.ComputeResources(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, amounts := range []map[corev1.ResourceName]template.Calculation{want.Requests, want.Limits} {
		for _, a := range amounts {
			for i := range a.Terms {
				a.Terms[i].Amount.Add(resource.MustParse("1G"))
			}
		}
	}
	if diff := cmp.Diff(vmi(), in.VMI, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Equal(b) })); diff != "" {
		t.Errorf("the VMI was changed:\n%s", diff)
	}
	got, err := template.ComputeResources(in)
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range want.Requests {
		if b := got.Requests[name]; a.Quantity.Cmp(b.Quantity) != 0 {
			t.Errorf("%s: %s, then %s", name, a.Quantity.String(), b.Quantity.String())
		}
	}
}

func TestComputeResources_MissingVMI(t *testing.T) {
	_, err := template.ComputeResources(template.Input{})
	if err == nil {
		t.Fatal("calculated nothing for nobody")
	}
}
