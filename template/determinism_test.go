// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/template"
)

var renders = flag.Int("renders", 50, "how often each file of the corpus is rendered to see that the Pods are equal")

// TestRender_Deterministic renders each Pod of the corpus from copies of its input with shuffled maps and unordered lists,
// and compares bytes. Rendering must not modify the copies.
func TestRender_Deterministic(t *testing.T) {
	for _, file := range corpusFiles(t) {
		t.Run(baseName(file), func(t *testing.T) {
			t.Parallel()
			pods := podsOf(t, file)
			for _, p := range pods {
				want := outcome(t, p)
				for i := range max(1, *renders/len(pods)) {
					before, shuffled := p.in, p
					shuffled.in = deepCopy(reflect.ValueOf(p.in), random(p, i)).Interface().(template.Input)
					shuffleLists(random(p, i), &before)
					shuffleLists(random(p, i), &shuffled.in)
					if got := outcome(t, shuffled); !bytes.Equal(got, want) {
						t.Fatalf("%s: render %d differs:\n%s", p.name, i, cmp.Diff(readable(t, want), readable(t, got)))
					}
					if !reflect.DeepEqual(shuffled.in, before) {
						t.Fatalf("%s: rendering changed the input:\n%s", p.name, cmp.Diff(before, shuffled.in, exported))
					}
				}
			}
		})
	}
}

// TestRender_NoMemorySharedWithInput overwrites each Pod of the corpus: the input must not change.
func TestRender_NoMemorySharedWithInput(t *testing.T) {
	for _, p := range corpus(t) {
		t.Run(p.name, func(t *testing.T) {
			before := deepCopy(reflect.ValueOf(p.in), nil).Interface().(template.Input)
			pod, err := p.render()
			if err != nil {
				t.Fatal(err)
			}
			scribble(reflect.ValueOf(pod))
			if !reflect.DeepEqual(p.in, before) {
				t.Errorf("the Pod shares memory with its input:\n%s", cmp.Diff(before, p.in, exported))
			}
		})
	}
}

// TestRender_NoMemorySharedWithinPod looks for memory that occurs twice in a Pod of the corpus: changing one field of a Pod
// must not change another.
func TestRender_NoMemorySharedWithinPod(t *testing.T) {
	for _, p := range corpus(t) {
		t.Run(p.name, func(t *testing.T) {
			pod, err := p.render()
			if err != nil {
				t.Fatal(err)
			}
			places(reflect.ValueOf(pod), "pod", map[place]string{}, func(first, second string) {
				t.Errorf("%s and %s are the same memory", first, second)
			})
		})
	}
}

// place is the address of the contents of a pointer, map or slice; zero for values without such contents.
type place struct {
	of      reflect.Type
	address uintptr
}

func memory(v reflect.Value) place {
	switch v.Kind() {
	case reflect.Pointer, reflect.Map:
		return place{v.Type(), v.Pointer()}
	case reflect.Slice:
		if v.Len() > 0 {
			return place{v.Type(), v.Pointer()}
		}
	}
	return place{}
}

// places reports each two paths in a value with the same memory.
func places(v reflect.Value, at string, seen map[place]string, shared func(first, second string)) {
	if v.Type() == quantityType || v.Type() == timeType {
		return
	}
	if first, ok := seen[memory(v)]; ok && memory(v).address != 0 {
		shared(first, at)
		return
	}
	seen[memory(v)] = at
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			places(v.Elem(), at, seen, shared)
		}
	case reflect.Slice:
		for i := range v.Len() {
			places(v.Index(i), fmt.Sprintf("%s[%d]", at, i), seen, shared)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			places(v.Field(i), at+"."+v.Type().Field(i).Name, seen, shared)
		}
	}
}

// exported lets cmp compare quantities and times as reflect.DeepEqual does.
var exported = cmp.Exporter(func(reflect.Type) bool { return true })

// outcome returns the Pod, or the error, as bytes.
func outcome(t *testing.T, p corpusPod) []byte {
	t.Helper()
	pod, err := p.render()
	if err != nil {
		return []byte("error: " + err.Error())
	}
	content, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func readable(t *testing.T, content []byte) any {
	t.Helper()
	if bytes.HasPrefix(content, []byte("error: ")) {
		return string(content)
	}
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(content); err != nil {
		t.Fatal(err)
	}
	return pod
}

// random returns a source with the same numbers in every run.
func random(p corpusPod, i int) *rand.Rand { return rand.New(rand.NewPCG(uint64(i), uint64(p.kind))) }

// shuffleLists shuffles the lists without a significant order.
func shuffleLists(rng *rand.Rand, in *template.Input) {
	in.Facts.Quotas = shuffled(rng, in.Facts.Quotas)
	in.Config.FeatureGates = shuffled(rng, in.Config.FeatureGates)
	in.Config.DisabledFeatureGates = shuffled(rng, in.Config.DisabledFeatureGates)
}

func shuffled[T any](rng *rand.Rand, list []T) []T {
	list = slices.Clone(list)
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

var (
	quantityType = reflect.TypeFor[resource.Quantity]()
	timeType     = reflect.TypeFor[metav1.Time]()
)

// deepCopy copies a value. With rng, maps are filled in a random order.
func deepCopy(v reflect.Value, rng *rand.Rand) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(deepCopy(v.Elem(), rng))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(deepCopy(v.Index(i), rng))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			out.Set(copyMap(v, rng))
		}
	case reflect.Struct:
		switch v.Type() {
		case quantityType:
			out.Set(reflect.ValueOf(v.Interface().(resource.Quantity).DeepCopy()))
		case timeType: // a value without shared memory
		default:
			for i := range v.NumField() {
				out.Field(i).Set(deepCopy(v.Field(i), rng))
			}
		}
	}
	return out
}

func copyMap(v reflect.Value, rng *rand.Rand) reflect.Value {
	out := reflect.MakeMap(v.Type())
	keys := v.MapKeys()
	if rng != nil {
		keys = shuffled(rng, keys)
	}
	for _, key := range keys {
		out.SetMapIndex(key, deepCopy(v.MapIndex(key), rng))
	}
	return out
}

// scribble overwrites everything reachable from a value, including spare capacity of slices.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Slice:
		whole := v.Slice(0, v.Cap())
		for i := range whole.Len() {
			scribble(whole.Index(i))
		}
	case reflect.Map:
		scribbleMap(v)
	case reflect.Struct:
		if v.Type() == quantityType {
			q := v.Addr().Interface().(*resource.Quantity)
			q.AsDec().SetUnscaled(666)
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type() != timeType {
				scribble(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("scribble")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 666)
	}
}

func scribbleMap(v reflect.Value) {
	if v.IsNil() {
		return
	}
	for _, key := range v.MapKeys() {
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(v.MapIndex(key))
		scribble(value)
		v.SetMapIndex(key, value)
	}
	key := reflect.New(v.Type().Key()).Elem()
	key.SetString("scribble")
	v.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
}

// TestScribble_SharedMemory proves that the two tests above can fail.
func TestScribble_SharedMemory(t *testing.T) {
	deep := quantity("123456789012345678901") // more digits than an int64 has, kept behind a pointer
	room := make([]corev1.Toleration, 1, 4)
	for name, share := range map[string]func() (a, b any){
		"map": func() (any, any) {
			m := map[string]string{"a": "b"}
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: m}}, &m
		},
		"pointer": func() (any, any) {
			seconds := int64(1)
			return &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &seconds}}, &seconds
		},
		"spare room of a list": func() (any, any) {
			whole := room[:4]
			return &corev1.Pod{Spec: corev1.PodSpec{Tolerations: room}}, &whole
		},
		"list of a copied struct": func() (any, any) {
			dns := corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}}
			shallow := dns
			return &corev1.Pod{Spec: corev1.PodSpec{DNSConfig: &shallow}}, &dns
		},
		"quantity": func() (any, any) {
			limit := *deep
			return &corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}, deep
		},
	} {
		t.Run(name, func(t *testing.T) {
			written, input := share()
			before := deepCopy(reflect.ValueOf(input), nil).Interface()
			scribble(reflect.ValueOf(written))
			if reflect.DeepEqual(before, input) {
				t.Error("not noticed")
			}
		})
	}
}
