// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/explain"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/refdaemon/diagnosis"
	"github.com/virtloom/virtloom/template"
)

func TestObservers_InvalidArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, tt := range map[string]struct {
		args  []string
		says  string
		usage bool
	}{
		"nothing to explain":    {[]string{"explain"}, "migration NAMESPACE/NAME", true},
		"another kind":          {[]string{"explain", "guest", "ns/m"}, "migration NAMESPACE/NAME", true},
		"no namespace":          {[]string{"explain", "migration", "m"}, `"m" is not NAMESPACE/NAME`, true},
		"unknown format":        {[]string{"explain", "migration", "ns/m", "-o", "xml"}, "-o xml is unknown", true},
		"a flag of no use":      {[]string{"plan", "drain", "a", "--evacuate=false"}, "--evacuate", true},
		"unknown flag":          {[]string{"explain", "--nonsense"}, "nonsense", true},
		"nothing to plan":       {[]string{"plan"}, "drain NODE", true},
		"two nodes":             {[]string{"plan", "drain", "a", "b"}, "drain NODE", true},
		"no rate":               {[]string{"plan", "drain", "a", "--rate", "0"}, "--rate 0 is too small", true},
		"a rate of words":       {[]string{"plan", "--link", "fast", "drain", "a"}, `--link "fast"`, true},
		"a horizon gone by":     {[]string{"plan", "drain", "a", "--horizon=-1h"}, "--horizon", true},
		"a limit of no use":     {[]string{"plan", "drain", "a", "--migrations-inbound-per-node", "0"}, "--migrations-inbound-per-node", true},
		"a node of a namespace": {[]string{"explain", "node", "ns/a"}, `"ns/a" is not the NAME of a node`, true},
		"a guest without one":   {[]string{"explain", "vmi", "web"}, `"web" is not NAMESPACE/NAME`, true},
		"a token for nobody":    {[]string{"explain", "node", "a", "--controller-token-file", "t"}, "are for --controller", true},
		"nobody to believe":     {[]string{"explain", "node", "a", "--controller-insecure-skip-tls-verify"}, "are for --controller", true},
		"all and some believed": {[]string{"explain", "node", "a", "--controller", "https://c", "--controller-ca-file", "f", "--controller-insecure-skip-tls-verify"}, "exclude each other", true},
		"a dump and its author": {[]string{"explain", "node", "a", "--dump", "d", "--controller", "http://c"}, "--dump and --controller exclude each other", true},
		"no token":              {[]string{"explain", "node", "a", "--controller", "http://c", "--controller-token-file", "/nowhere"}, "/nowhere", false},
		"no certificate":        {[]string{"explain", "node", "a", "--controller", "https://c", "--controller-ca-file", "main.go"}, "has no certificate", false},
		"a dump of nowhere":     {[]string{"explain", "node", "a", "--dump", "/nowhere"}, "/nowhere", false},
		"a dump that is none":   {[]string{"plan", "drain", "a", "--dump", "main.go"}, "not a dump", false},
		"no file to write":      {[]string{"dump"}, "specify the FILE", true},
		"two files to write":    {[]string{"dump", "a", "b"}, "specify the FILE", true},
		"nothing to dump":       {[]string{"dump", "a"}, "--kubeconfig", false},
		"no cluster":            {[]string{"explain", "migration", "ns/m"}, "--kubeconfig", false},
		"no cluster to plan":    {[]string{"plan", "drain", "a"}, "--kubeconfig", false},
		"a kubeconfig of none":  {[]string{"plan", "drain", "a", "--kubeconfig", "/nowhere"}, "/nowhere", false},
	} {
		var out bytes.Buffer
		err := run(t.Context(), tt.args, &out)
		if err == nil || !strings.Contains(err.Error(), tt.says) || errors.As(err, &usageError{}) != tt.usage {
			t.Errorf("%s: error %v (of arguments: %t), want %q", name, err, errors.As(err, &usageError{}), tt.says)
		}
		if out.Len() > 0 {
			t.Errorf("%s: %q is no result", name, out.String())
		}
	}
}

func TestObservers_ControllerFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "controller.yaml")
	content := "apiVersion: config.virtloom.dev/v1alpha1\nkind: ControllerConfiguration\nlauncherImage: ours\nmigrations: {lent: -1, inboundPerNode: 7}\nevacuate: 1\n"
	if err := os.WriteFile(file, []byte(strings.Replace(content, "evacuate: 1\n", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &observer{command: "plan"}
	cmd := o.observes(&cobra.Command{Use: "plan"})
	if err := cmd.ParseFlags([]string{"--config", file, "--migrations-inbound-per-node", "3", "--migrations-abort-backups"}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.PreRunE(cmd, nil); err != nil {
		t.Fatal(err)
	}
	m := o.config.Migrations
	if m.Lent != -1 || m.InboundPerNode != 3 || !m.AbortBackups || o.config.LauncherImage != "ours" {
		t.Errorf("settings are %+v", m)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.PreRunE(cmd, nil); err == nil || !strings.Contains(err.Error(), "controller.yaml:5: evacuate: is not a field") {
		t.Errorf("error %v", err)
	}
}

// said is a result in words.
type said string

func (s said) Write(out io.Writer) error {
	_, err := io.WriteString(out, string(s))
	return err
}

func TestObservers_EscapeControlCharacters(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"words":            {"Waits for  ein Knoten, größer\n", "Waits for  ein Knoten, größer\n"},
		"escape sequences": {"lacks label a=\x1b[2J\x1b]0;x\x07\n", "lacks label a=�[2J�]0;x�\n"},
		"of eight bits":    {"a=\u009b2J\r\n", "a=�2J�\n"},
	} {
		var out bytes.Buffer
		if err := printResult(&out, "text", said(tt.text)); err != nil || out.String() != tt.want {
			t.Errorf("%s: error %v, printed %q, want %q", name, err, out.String(), tt.want)
		}
	}
}

// scene is a control plane with a node with three guests, of which one moves, one waits, and
// one stays; no controller is there to do anything about it.
type scene struct {
	*rig.Rig
	client.Client
}

func newScene(t *testing.T) *scene {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 3})}
	if s.Client, err = client.New(s.Config(rig.UserAdmin), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	one := uint32(1)
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevirt"}}
	kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{ParallelOutboundMigrationsPerNode: &one}
	s.create(t, kv)
	s.create(t, &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "machine"}, Spec: v1.VirtualMachineSpec{
		RunStrategy: new(v1.RunStrategyAlways), Instancetype: &v1.InstancetypeMatcher{Name: "none", Kind: "VirtualMachineInstancetype"},
		Template: &v1.VirtualMachineInstanceTemplateSpec{}}})
	moves := s.guest(t, "moves", v1.EvictionStrategyLiveMigrate)
	s.guest(t, "waits", v1.EvictionStrategyLiveMigrate)
	s.guest(t, "stays", v1.EvictionStrategyNone)
	for _, name := range []string{"moves", "waits"} {
		s.create(t, &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, Labels: map[string]string{v1.MigrationSelectorLabel: name},
				Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer},
			},
			Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: name},
		})
	}
	m := &v1.VirtualMachineInstanceMigration{}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "moves"}, m); err != nil {
		t.Fatal(err)
	}
	pod, err := template.Default().Launcher(template.Input{VMI: moves, Config: template.Config{LauncherImage: "example.test/launcher:1"}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Name, pod.Spec.NodeName, pod.Labels[v1.MigrationJobLabel] = "target", "sim-1", string(m.UID)
	s.create(t, pod)
	return s
}

func (s *scene) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := s.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// guest makes a guest that runs on node sim-0.
func (s *scene) guest(t *testing.T, name string, strategy v1.EvictionStrategy) *v1.VirtualMachineInstance {
	t.Helper()
	memory := resource.MustParse("256Mi")
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}}, EvictionStrategy: &strategy},
	}
	s.create(t, vmi)
	pod, err := template.Default().Launcher(template.Input{VMI: vmi, Config: template.Config{LauncherImage: "example.test/launcher:1"}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.NodeName = "sim-0"
	s.create(t, pod)
	vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.SelinuxContext = v1.Running, "sim-0", "none"
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
	if err := handoff.Put(vmi, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "sim-0"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	return vmi
}

// as runs a command with the rights of a user.
func (s *scene) as(t *testing.T, user string, args ...string) ([]byte, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append(args, "--kubeconfig", s.Kubeconfig(user)), &out)
	return out.Bytes(), err
}

func TestObservers_RealControlPlane(t *testing.T) {
	s := newScene(t)
	t.Run("a migration is explained", func(t *testing.T) { explains(t, s) })
	t.Run("a drain is planned", func(t *testing.T) { plans(t, s) })
	t.Run("names are completed", func(t *testing.T) { completes(t, s) })
	t.Run("a VM is explained", func(t *testing.T) { explainsMachine(t, s) })
	t.Run("a guest is explained", func(t *testing.T) { explainsGuest(t, s) })
	t.Run("a node is explained", func(t *testing.T) { explainsNode(t, s) })
	t.Run("a dump shows the same as the cluster", func(t *testing.T) { dumps(t, s) })
	t.Run("what is not there is said", func(t *testing.T) {
		for want, args := range map[string][]string{
			"there is no VirtualMachineInstanceMigration default/none":          {"explain", "migration", "default/none"},
			`the Node does not exist: "nowhere"`:                                {"plan", "drain", "nowhere"},
			"specify an existing one in namespace default: moves, stays, waits": {"explain", "vmi", "default/none"},
			"there is none in namespace nowhere":                                {"explain", "vmi", "nowhere/none"},
			"specify an existing one in namespace default: machine":             {"explain", "vm", "default/none"},
			"specify an existing one: sim-0, sim-1, sim-2":                      {"explain", "node", "nowhere"},
		} {
			if out, err := s.as(t, rig.UserController, args...); err == nil || !strings.Contains(err.Error(), want) || len(out) > 0 {
				t.Errorf("error %v, want %q; printed %s", err, want, out)
			}
		}
	})
	requests, err := s.Requests()
	if err != nil {
		t.Fatal(err)
	}
	writes := 0
	for _, q := range requests {
		if q.ReadOnly() {
			continue
		}
		writes++
		if q.User.Username == rig.UserController {
			t.Errorf("an observer has sent: %s", q.What())
		}
	}
	if writes == 0 {
		t.Error("the audit log knows of no write, not even the test's own: this proves nothing")
	}
}

func explains(t *testing.T, s *scene) {
	text, err := s.as(t, rig.UserController, "explain", "migration", "default/waits", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var e explain.Explanation
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if e.Reason != migration.ReasonWaitingForSlot || e.Queue == nil || e.Queue.Position != 1 || len(e.Blockers) != 1 ||
		e.Blockers[0].Limit != queue.LimitOutbound || e.Blockers[0].Node != "sim-0" || e.Blockers[0].Holders[0] != "default/moves" {
		t.Errorf("explained as %s", text)
	}
	if e.Targets == nil || len(e.Targets.Candidates) != 2 {
		t.Errorf("targets are %+v", e.Targets)
	}
	text, err = s.as(t, rig.UserController, "explain", "migration", "default/moves")
	if err != nil || !strings.Contains(string(text), "Migration     default/moves of VMI moves") {
		t.Errorf("error %v, printed %s", err, text)
	}
}

func explainsMachine(t *testing.T, s *scene) {
	for want, args := range map[string][]string{
		"\nFinding       InvalidSpec (FailedFindInstancetype): VirtualMachineInstancetype default/none not found; create it, or correct spec.instancetype\n": nil,
		"\nFinding       Unmanaged: ": {"--virtual-machines=false"},
	} {
		text, err := s.as(t, rig.UserController, append([]string{"explain", "vm", "default/machine"}, args...)...)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("error %v, nothing says %q:\n%s", err, want, text)
		}
	}
}

func explainsGuest(t *testing.T, s *scene) {
	text, err := s.as(t, rig.UserController, "explain", "vmi", "default/waits")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Guest         default/waits\n", "Lease         Owned, node sim-0, epoch 1\n", "Migration     waits: ", "migrations leaving node sim-0", "--controller asks it"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("nothing says %q:\n%s", want, text)
		}
	}
}

func explainsNode(t *testing.T, s *scene) {
	text, err := s.as(t, rig.UserController, "explain", "node", "sim-0", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var n diagnosis.Node
	if err := json.Unmarshal(text, &n); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if len(n.VMIs) != 1 || n.VMIs[0].VMIs != 3 || n.Outbound != (diagnosis.Slots{Used: 1, Limit: 1}) {
		t.Errorf("explained as %s", text)
	}
}

// dumps compares the output for a dump with that for the cluster. Only the time differs.
func dumps(t *testing.T, s *scene) {
	file := filepath.Join(t.TempDir(), "cluster.dump.gz")
	text, err := s.as(t, rig.UserController, "dump", file)
	if err != nil || !strings.Contains(string(text), "3  VirtualMachineInstance\n") {
		t.Fatalf("error %v, printed %s", err, text)
	}
	for _, args := range [][]string{
		{"explain", "vmi", "default/moves"}, {"explain", "vmi", "default/waits"}, {"explain", "vmi", "default/stays"},
		{"explain", "migration", "default/moves"}, {"explain", "migration", "default/waits"}, {"explain", "node", "sim-0"}, {"explain", "vm", "default/machine"}, {"plan", "drain", "sim-0"},
	} {
		live, err := s.as(t, rig.UserController, append(args, "-o", "json")...)
		if err != nil {
			t.Fatal(err)
		}
		var read bytes.Buffer
		if err := run(t.Context(), append(args, "-o", "json", "--dump", file), &read); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(timeless(t, live), timeless(t, read.Bytes())); diff != "" {
			t.Errorf("%q (-cluster +dump):\n%s", args, diff)
		}
	}
}

// completes compares what the shell is offered of a dump and of the cluster.
func completes(t *testing.T, s *scene) {
	file := filepath.Join(t.TempDir(), "cluster.dump.gz")
	if text, err := s.as(t, rig.UserController, "dump", file); err != nil {
		t.Fatalf("error %v, printed %s", err, text)
	}
	offered := func(of string, words []string) string {
		var out bytes.Buffer
		if err := run(t.Context(), slices.Concat([]string{cobra.ShellCompNoDescRequestCmd}, words, []string{of, ""}), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, tt := range []struct{ words, want []string }{
		{[]string{"explain"}, []string{"vm", "vmi", "migration", "node"}},
		{[]string{"explain", "vm"}, []string{"default/machine"}},
		{[]string{"explain", "vmi"}, []string{"default/moves", "default/stays", "default/waits"}},
		{[]string{"explain", "migration"}, []string{"default/moves", "default/waits"}},
		{[]string{"explain", "node"}, []string{"sim-0"}},
		{[]string{"plan", "drain"}, []string{"sim-0"}},
		{[]string{"explain", "vmi", "default/moves"}, nil},
	} {
		read, live := offered("--dump="+file, tt.words), offered("--kubeconfig="+s.Kubeconfig(rig.UserController), tt.words)
		lines := strings.Split(strings.TrimSpace(read), "\n")
		for _, want := range tt.want {
			if !slices.Contains(lines, want) {
				t.Errorf("%q is completed by %q, want %q too", tt.words, lines, want)
			}
		}
		if lines[len(lines)-1] != ":4" || len(tt.want) == 0 && len(lines) > 1 { // 4: no names of files
			t.Errorf("%q is completed by %q", tt.words, lines)
		}
		if diff := cmp.Diff(read, live); diff != "" {
			t.Errorf("completion of %q (-dump +cluster):\n%s", tt.words, diff)
		}
	}
}

// timeless is a result without the time at which it was found, and the deadline that a migration which no controller has
// looked at yet has from then on.
func timeless(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var result map[string]any
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	delete(result, "at")
	delete(result, "deadline")
	return result
}

func plans(t *testing.T, s *scene) {
	text, err := s.as(t, rig.UserController, "plan", "drain", "sim-0", "-o", "json", "--rate", "64Mi")
	if err != nil {
		t.Fatal(err)
	}
	var p migrationctrl.DrainPlan
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if p.VMIs != 3 || len(p.Moves) != 2 || len(p.Stays) != 1 {
		t.Fatalf("planned %s", text)
	}
	if p.Moves[0].VMI != "moves" || p.Moves[0].Target != "sim-1" || p.Moves[1].VMI != "waits" || p.Moves[1].Starts < p.Moves[0].Ends-1 {
		t.Errorf("moves are %+v", p.Moves)
	}
	if p.Stays[0].VMI != "stays" || p.Stays[0].Reason != evacuation.ReasonStrategyNone {
		t.Errorf("stays are %+v", p.Stays)
	}
	if p.LowerBound < 8 || p.Makespan < p.LowerBound || p.Makespan > 3*p.LowerBound {
		t.Errorf("takes %v s, at least %v s", p.Makespan, p.LowerBound)
	}
	text, err = s.as(t, rig.UserController, "plan", "drain", "sim-0")
	if err != nil || !strings.HasPrefix(string(text), "Node sim-0: 3 VMIs, 2 leave within ") {
		t.Errorf("error %v, printed %s", err, text)
	}
	t.Logf("%s", text)
}
