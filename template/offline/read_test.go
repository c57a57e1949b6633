// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	exportv1 "kubevirt.io/api/export/v1"
	exportv1beta1 "kubevirt.io/api/export/v1beta1"

	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

const guest = `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: testvmi}
spec:
  domain: {devices: {}, memory: {guest: 1Gi}}
`

func read(t testing.TB, text string) []offline.Object {
	t.Helper()
	objects, err := offline.Read("test.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestRead_Sources(t *testing.T) {
	const (
		node  = "{apiVersion: v1, kind: Node, metadata: {name: n1}}"
		space = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}`
		claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c, namespace: ns}}"
	)
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"nothing":                      {"", nil},
		"comments alone":               {"# nothing\n---\n# here\n", nil},
		"one object":                   {guest, []string{"VirtualMachineInstance default/testvmi @ test.yaml: document 1 (line 1)"}},
		"comment first":                {"# a guest\n\n" + guest, []string{"VirtualMachineInstance default/testvmi @ test.yaml: document 1 (line 3)"}},
		"separator first":              {"---\n" + node, []string{"Node n1 @ test.yaml: document 1 (line 2)"}},
		"two documents":                {node + "\n---\n" + claim, []string{"Node n1 @ test.yaml: document 1 (line 1)", "PersistentVolumeClaim ns/c @ test.yaml: document 2 (line 3)"}},
		"empty documents do not count": {node + "\n---\n# empty\n---\n\n" + claim, []string{"Node n1 @ test.yaml: document 1 (line 1)", "PersistentVolumeClaim ns/c @ test.yaml: document 2 (line 6)"}},
		"comment behind the dashes":    {node + "\n--- # more\n" + claim, []string{"Node n1 @ test.yaml: document 1 (line 1)", "PersistentVolumeClaim ns/c @ test.yaml: document 2 (line 3)"}},
		"document behind the dashes":   {"--- " + node + "\n--- " + claim, []string{"Node n1 @ test.yaml: document 1 (line 1)", "PersistentVolumeClaim ns/c @ test.yaml: document 2 (line 2)"}},
		"end of document":              {node + "\n...\n---\n" + claim, []string{"Node n1 @ test.yaml: document 1 (line 1)", "PersistentVolumeClaim ns/c @ test.yaml: document 2 (line 4)"}},
		"line ends of Windows":         {node + "\r\n---\r\n" + claim + "\r\n", []string{"Node n1 @ test.yaml: document 1 (line 1)", "PersistentVolumeClaim ns/c @ test.yaml: document 2 (line 3)"}},
		"byte order mark":              {"\ufeff" + node, []string{"Node n1 @ test.yaml: document 1 (line 1)"}},
		"JSON":                         {space, []string{"Namespace ns @ test.yaml: document 1 (line 1)"}},
		"JSON after JSON":              {space + "\n" + strings.ReplaceAll(space, "ns", "other"), []string{"Namespace ns @ test.yaml: document 1 (line 1)", "Namespace other @ test.yaml: document 2 (line 2)"}},
		"dashes in a text": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  k: |\n    ---\n    x\n",
			[]string{"ConfigMap default/m @ test.yaml: document 1 (line 1)"},
		},
		"List": {
			"apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\"}\nitems:\n- " + node + "\n- " + claim,
			[]string{"Node n1 @ test.yaml: document 1 (line 1), item 1", "PersistentVolumeClaim ns/c @ test.yaml: document 1 (line 1), item 2"},
		},
		"list of one kind": {
			"apiVersion: v1\nkind: NodeList\nitems:\n- metadata: {name: a}\n- " + node,
			[]string{"Node a @ test.yaml: document 1 (line 1), item 1", "Node n1 @ test.yaml: document 1 (line 1), item 2"},
		},
		"kinds that are skipped": {
			"{apiVersion: v1, kind: Secret}\n---\n{apiVersion: v1, kind: Service}\n---\n{apiVersion: v1, kind: ServiceAccount}\n---\n" +
				"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy}\n---\n" + node,
			[]string{"Node n1 @ test.yaml: document 5 (line 9)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, o := range read(t, tt.text) {
				got = append(got, o.String()+" @ "+o.Source.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRead_Faults(t *testing.T) {
	vmi := func(spec string) string {
		return "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: testvmi, namespace: ns}\nspec:\n" + spec
	}
	const at = "test.yaml: document 1 (line 2): VirtualMachineInstance ns/testvmi: "
	for name, tt := range map[string]struct{ text, want string }{
		"unknown field": {
			vmi("  domain: {devices: {disk: []}}\n"),
			at + "spec.domain.devices.disk: is not a field of VirtualMachineInstance; correct its name (case-sensitive) or its position, or remove it",
		},
		"unknown field in a list": {
			vmi("  volumes: [{name: a}, {name: b, containerdisk: {image: x}}]\n"),
			at + "spec.volumes[1].containerdisk: is not a field of VirtualMachineInstance; correct its name (case-sensitive) or its position, or remove it",
		},
		"field twice in JSON": {
			`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDR": "a", "podCIDR": "b"}}`,
			"test.yaml: document 1 (line 1): Node n: spec.podCIDR: is a duplicate; keep one of them",
		},
		"kind twice in JSON": {
			`{"apiVersion": "v1", "kind": "Node", "kind": "Node"}`,
			"test.yaml: document 1 (line 1): Node: kind: is a duplicate; keep one of them",
		},
		"field twice in YAML": {
			vmi("  hostname: a\n  hostname: b\n"),
			`test.yaml: document 1 (line 2): must be YAML or JSON: yaml: unmarshal errors: line 7: key "hostname" already set in map; correct the text at this line`,
		},
		"number for text": {
			vmi("  nodeSelector: {zone: 1}\n"), at + "spec.nodeSelector[zone]: 1 must be a string (use quotes); correct the value",
		},
		"text for number": {
			vmi("  domain: {cpu: {cores: two}, devices: {}}\n"),
			at + `spec.domain.cpu.cores: "two" must be a non-negative whole number of 32 bits; correct the value`,
		},
		"negative number": {
			vmi("  domain: {cpu: {cores: -2}, devices: {}}\n"),
			at + "spec.domain.cpu.cores: -2 must be a non-negative whole number of 32 bits; correct the value",
		},
		"fraction for whole number": {
			vmi("  terminationGracePeriodSeconds: 1.5\n"),
			at + "spec.terminationGracePeriodSeconds: 1.5 must be a whole number of 64 bits; correct the value",
		},
		"text for truth": {
			vmi("  domain: {devices: {autoattachVSOCK: \"yes\"}}\n"),
			at + `spec.domain.devices.autoattachVSOCK: "yes" must be true or false; correct the value`,
		},
		"map for list": {
			vmi("  volumes: {name: a}\n"), at + `spec.volumes: {"name":"a"} must be a list; correct the value`,
		},
		"list for map": {
			vmi("  domain: []\n"), at + "spec.domain: [] must be a map of fields; correct the value",
		},
		"long value": {
			vmi("  volumes: " + strings.Repeat("ä", 40) + "\n"), at + `spec.volumes: "` + strings.Repeat("ä", 19) + "… must be a list; correct the value",
		},
		"no quantity in a list": {
			vmi("  volumes: [{name: a}, {name: b, emptyDisk: {capacity: big}}]\n"),
			at + `spec.volumes[1].emptyDisk.capacity: "big" must be a quantity, such as 500m, 2 or 1Gi; correct the value`,
		},
		"no time": {
			"{apiVersion: v1, kind: Node, metadata: {name: n1, creationTimestamp: yesterday}}",
			`test.yaml: document 1 (line 1): Node n1: metadata.creationTimestamp: "yesterday" must be a time, such as 2026-01-31T12:00:00Z; correct the value`,
		},
		"no duration": {
			"{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, spec: {configuration: {handlerConfiguration: {restClient: {rateLimiter: {tokenBucketRateLimiter: {qps: much}}}}}}}",
			`test.yaml: document 1 (line 1): KubeVirt k: spec.configuration.handlerConfiguration.restClient.rateLimiter.tokenBucketRateLimiter.qps: "much" must be a number; correct the value`,
		},
		"no int or string": {
			"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, livenessProbe: {httpGet: {port: [1]}}}]}}",
			"test.yaml: document 1 (line 1): Pod p: spec.containers[0].livenessProbe.httpGet.port: [1]: json: cannot unmarshal array into Go value of type int32; correct the value",
		},
		"no YAML": {
			guest + "---\na: [b\n",
			"test.yaml: document 2 (line 7): must be YAML or JSON: yaml: line 7: did not find expected ',' or ']'; correct the text at this line",
		},
		"no JSON": {
			`{"apiVersion": "v1", "kind": "Secret"}` + "\n{\"apiVersion\": }\n",
			"test.yaml: document 2 (line 1): must be YAML or JSON: invalid character '}' looking for beginning of value; correct the text at this line",
		},
		"text": {
			"hello", "test.yaml: document 1 (line 1): must be an object; begin a manifest with apiVersion, kind and metadata",
		},
		"no kind": {
			"apiVersion: v1\nmetadata: {name: a}",
			"test.yaml: document 1 (line 1): object a: kind: must be set; set the kind of the object, such as VirtualMachineInstance",
		},
		"no apiVersion": {
			"kind: VirtualMachineInstance\nmetadata: {name: a}",
			"test.yaml: document 1 (line 1): VirtualMachineInstance a: apiVersion: must be set; add apiVersion: kubevirt.io/v1",
		},
		"no apiVersion of an unknown kind": {
			"kind: Thing\nmetadata: {name: a}",
			"test.yaml: document 1 (line 1): Thing a: apiVersion: must be set; add the group and version of the object",
		},
		"kind is a number": {
			"apiVersion: v1\nkind: 1", "test.yaml: document 1 (line 1): kind: 1 must be a string (use quotes); correct the value",
		},
		"wrong version": {
			"{apiVersion: kubevirt.io/v2, kind: KubeVirt, metadata: {name: k}}",
			"test.yaml: document 1 (line 1): KubeVirt k: apiVersion: kubevirt.io/v2 is not supported; use kubevirt.io/v1",
		},
		"VirtualMachine with an unknown field": {
			"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, namespace: ns}, spec: {template: {spec: {domain: {cpus: 2}}}}}",
			"test.yaml: document 1 (line 1): VirtualMachine ns/vm: spec.template.spec.domain.cpus: is not a field of VirtualMachine",
		},
		"instance type of another version": {
			"{apiVersion: instancetype.kubevirt.io/v1alpha1, kind: VirtualMachineInstancetype, metadata: {name: i}}",
			"test.yaml: document 1 (line 1): VirtualMachineInstancetype i: apiVersion: instancetype.kubevirt.io/v1alpha1 is not supported; use instancetype.kubevirt.io/v1beta1",
		},
		"namespace of a cluster instance type": {
			"{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineClusterInstancetype, metadata: {name: i, namespace: ns}}",
			"test.yaml: document 1 (line 1): VirtualMachineClusterInstancetype ns/i: metadata.namespace: is not supported for the cluster-scoped kind",
		},
		"unrelated kind": {
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}",
			"test.yaml: document 1 (line 1): Deployment d: kind: apps/v1 Deployment is not supported; remove it; supported kinds: " +
				"ConfigMap, ControllerRevision, DataSource, DataVolume, KubeVirt, Namespace, NetworkAttachmentDefinition, Node, PersistentVolumeClaim, " +
				"Pod, ResourceQuota, VirtualMachine, VirtualMachineClusterInstancetype, VirtualMachineClusterPreference, VirtualMachineExport, " +
				"VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstancetype, VirtualMachinePreference",
		},
		"Secret of another group": {
			"{apiVersion: example.com/v1, kind: Secret, metadata: {name: s}}",
			"test.yaml: document 1 (line 1): Secret s: kind: example.com/v1 Secret is not supported",
		},
		"no name": {
			"{apiVersion: v1, kind: Pod, metadata: {namespace: ns}}",
			"test.yaml: document 1 (line 1): Pod: metadata.name: must be set; set the name",
		},
		"generated name": {
			"{apiVersion: v1, kind: Pod, metadata: {generateName: p-}}",
			"test.yaml: document 1 (line 1): Pod: metadata.name: must be set; set the name; only an API server supports generateName",
		},
		"bad name": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a/b}}",
			`test.yaml: document 1 (line 1): Pod a/b: metadata.name: "a/b": a lowercase RFC 1123 subdomain must consist of`,
		},
		"bad namespace": {
			"{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b.c}}",
			`test.yaml: document 1 (line 1): Pod b.c/a: metadata.namespace: "b.c": must not contain dots; correct the namespace`,
		},
		"namespace of a Node": {
			"{apiVersion: v1, kind: Node, metadata: {name: a, namespace: b}}",
			"test.yaml: document 1 (line 1): Node b/a: metadata.namespace: is not supported for the cluster-scoped kind Node; remove it",
		},
		"definition with an unknown field": {
			"{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: net}, spec: {conf: x}}",
			"test.yaml: document 1 (line 1): NetworkAttachmentDefinition net: spec.conf: is not a field of NetworkAttachmentDefinition",
		},
		"fault in a List": {
			"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: Pod, metadata: {name: p}, specs: {}}]}",
			"test.yaml: document 1 (line 1), item 2: Pod p: specs: is not a field of Pod",
		},
		"List in a List": {
			"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List}]}",
			"test.yaml: document 1 (line 1), item 1: List: kind: v1 List is not supported",
		},
		"unknown field of a List": {
			"{apiVersion: v1, kind: List, objects: []}", "test.yaml: document 1 (line 1): List: objects: is not a field of List",
		},
		"List of a wrong type": {
			"{apiVersion: v1, kind: List, items: {}}", "test.yaml: document 1 (line 1): List: items: {} must be a list; correct the value",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := offline.Read("test.yaml", strings.NewReader(tt.text))
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error\n%s\nwant\n%s", err, tt.want)
			}
			var fault *offline.Error
			if !errors.As(err, &fault) || !errors.Is(err, render.ErrInvalid) || fault.Remedy == "" {
				t.Errorf("error %#v, want an *Error with a remedy that is template.ErrInvalid", err)
			}
		})
	}
}

func TestRead_AllFaults(t *testing.T) {
	text := "{apiVersion: v1, kind: Pod}\n---\na: [\n---\n" + guest + "---\n{apiVersion: v1, kind: Nod, metadata: {name: n1}}\n---\n" +
		"{apiVersion: v1, kind: Pod, metadata: {name: p}, a: 1, b: 2}\n"
	objects, err := offline.Read("test.yaml", strings.NewReader(text))
	if len(objects) != 1 || objects[0].String() != "VirtualMachineInstance default/testvmi" || objects[0].Source.Document != 3 {
		t.Errorf("objects %v", objects)
	}
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"document 1 ", "document 2 ", "document 4 ", "Pod p: a: ", "Pod p: b: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q:\n%s", want, err)
		}
	}
}

func TestRead_FailingReader(t *testing.T) {
	broken := errors.New("broken")
	_, err := offline.Read("test.yaml", iotest.ErrReader(broken))
	if !errors.Is(err, broken) || err.Error() != "test.yaml: cannot be read: broken; use a readable file with manifests" {
		t.Errorf("error %v", err)
	}
}

func TestRead_NamespaceAndUIDDefaults(t *testing.T) {
	const claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a, namespace: default}}"
	objects := read(t, strings.Join([]string{
		claim, strings.Replace(claim, ", namespace: default", "", 1), strings.Replace(claim, "default", "other", 1),
		strings.Replace(claim, "name: a", "name: b", 1), strings.Replace(claim, "PersistentVolumeClaim", "ConfigMap", 1),
		strings.Replace(claim, "name: a", "name: a, uid: u-1", 1),
	}, "\n---\n"))
	uid := func(i int) string { return string(objects[i].Value.GetUID()) }
	if uid(0) != uid(1) || objects[1].Value.GetNamespace() != "default" {
		t.Errorf("an absent namespace is not default: %s %s", uid(0), uid(1))
	}
	seen := map[string]bool{}
	for i := range objects {
		if i == 1 {
			continue
		}
		if seen[uid(i)] {
			t.Errorf("%s has the UID of another object", objects[i])
		}
		seen[uid(i)] = true
		if objects[i].StandIn != (i != 5) {
			t.Errorf("%s: stand-in %v", objects[i], objects[i].StandIn)
		}
	}
	if uid(5) != "u-1" {
		t.Errorf("the UID of the manifest became %s", uid(5))
	}
	if want := "9a1c5a66-1e43-8"; len(uid(0)) != 36 || uid(0)[14] != '8' {
		t.Errorf("UID %s, want one like %s", uid(0), want)
	}
}

func TestRead_OldVersions(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1"} {
		o := read(t, "{apiVersion: export.kubevirt.io/"+version+", kind: VirtualMachineExport, metadata: {name: e}, "+
			"spec: {source: {apiGroup: \"\", kind: PersistentVolumeClaim, name: c}}}")[0]
		e, ok := o.Value.(*exportv1.VirtualMachineExport)
		if !ok || e.Spec.Source.Name != "c" || e.APIVersion != "export.kubevirt.io/v1" {
			t.Errorf("%s: %#v", version, o.Value)
		}
	}
	// The types may be shared only while their fields are equal.
	equalFields(t, reflect.TypeFor[exportv1.VirtualMachineExport](), reflect.TypeFor[exportv1beta1.VirtualMachineExport](), "")
}

func equalFields(t *testing.T, a, b reflect.Type, path string) {
	t.Helper()
	for a.Kind() == b.Kind() && (a.Kind() == reflect.Pointer || a.Kind() == reflect.Slice || a.Kind() == reflect.Map) {
		a, b = a.Elem(), b.Elem()
	}
	if a == b {
		return
	}
	if a.Kind() != b.Kind() || a.Kind() == reflect.Struct && a.NumField() != b.NumField() {
		t.Errorf("%s: %v and %v differ", path, a, b)
		return
	}
	if a.Kind() != reflect.Struct {
		return
	}
	for i := range a.NumField() {
		if a.Field(i).Tag.Get("json") != b.Field(i).Tag.Get("json") {
			t.Errorf("%s: field %s differs", path, a.Field(i).Name)
		}
		equalFields(t, a.Field(i).Type, b.Field(i).Type, path+"."+a.Field(i).Name)
	}
}
