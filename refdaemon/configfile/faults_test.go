// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// Heads of files; the first line after them is 3.
var (
	ofController = head(configfile.KindController)
	ofNode       = head(configfile.KindNode)
)

func TestRead_Faults(t *testing.T) {
	for name, tt := range map[string]struct {
		content string
		want    []string // what each fault begins with, after the file's name
	}{
		"sound":            {content: ofController},
		"sound, of a node": {content: ofNode + "migration: {insecure: true}"},
		"one document":     {content: "---\n" + ofController + "...\n"},

		"empty":                {content: "# nothing\n", want: []string{": is empty; refdaemon config print-defaults prints"}},
		"no YAML":              {content: "kind: [", want: []string{": is not YAML: line 1: did not find"}},
		"YAML up to somewhere": {content: ofController + "---\na: [", want: []string{": is not YAML: "}},
		"a tab":                {content: "kind:\n\t- a", want: []string{": is not YAML: line 2: found character that cannot start any token"}},
		"a list":               {content: "- a", want: []string{":1: is a list; write an object with apiVersion and kind"}},
		"a word":               {content: "a", want: []string{":1: is the string \"a\"; write an object"}},
		"two documents":        {content: ofController + "---\n" + ofNode, want: []string{":3: a second document begins; keep one configuration in a file"}},
		"huge":                 {content: strings.Repeat("#", 1<<20+1), want: []string{": has more than 1048576 bytes"}},
		"no header": {content: "log: {}", want: []string{
			":1: apiVersion: is missing; write apiVersion: config.virtloom.dev/v1alpha1", ":1: kind: is missing; write kind: ControllerConfiguration or NodeConfiguration",
		}},
		"another version": {content: "apiVersion: config.virtloom.dev/v1\nkind: NodeConfiguration\nno: 1", want: []string{":1: apiVersion: is \"config.virtloom.dev/v1\"; write apiVersion: config.virtloom.dev/v1alpha1"}},
		"another kind":    {content: "apiVersion: config.virtloom.dev/v1alpha1\nkind: KubeVirt", want: []string{":2: kind: is \"KubeVirt\"; write kind: "}},
		"kind of objects": {content: "apiVersion: config.virtloom.dev/v1alpha1\nkind: {}", want: []string{":2: kind: is an object; write kind: "}},

		"unknown":             {content: ofController + "nonsense: 1", want: []string{":3: nonsense: is not a field of ControllerConfiguration; correct its name or its place, or remove it"}},
		"of the other kind":   {content: ofController + "nodeName: a", want: []string{":3: nodeName: is not a field of ControllerConfiguration; "}},
		"unknown, below":      {content: ofController + "log:\n  level: debug", want: []string{":4: log.level: is not a field"}},
		"in lower case":       {content: ofController + "launcherimage: a", want: []string{":3: launcherimage: is not a field of ControllerConfiguration; write launcherImage, or remove it"}},
		"a section's case":    {content: ofController + "leaderelection: {}", want: []string{":3: leaderelection: is not a field of ControllerConfiguration; write leaderElection, or remove it"}},
		"named as its flag":   {content: ofController + "migrations: {migrations-lent: 1}", want: []string{":3: migrations.migrations-lent: is not a field of ControllerConfiguration; write migrations.lent, or remove it"}},
		"in another place":    {content: ofController + "inboundPerNode: 1", want: []string{":3: inboundPerNode: is not a field of ControllerConfiguration; write migrations.inboundPerNode, or remove it"}},
		"there twice":         {content: ofController + "launcherImage: a\nlauncherImage: b", want: []string{":4: launcherImage: is a duplicate of the field in line 3; remove one of the two"}},
		"a section twice":     {content: ofController + "log: {}\nlog: {}", want: []string{":4: log: is a duplicate of the field in line 3"}},
		"the kind twice":      {content: ofController + "kind: NodeConfiguration", want: []string{":3: kind: is a duplicate of the field in line 2"}},
		"a name of no string": {content: ofController + "1: a", want: []string{":3: has the number 1 for the name of a field; write a string"}},
		"a merge":             {content: ofController + "log: &l {verbosity: 1}\nmetrics:\n  <<: *l", want: []string{":5: metrics: has !!merge \"<<\" for the name of a field"}},
		"a section of words":  {content: ofController + "metrics: on", want: []string{":3: metrics: is the string \"on\"; write an object"}},

		"a string of digits":    {content: ofController + "migrations: {inboundPerNode: \"2\"}", want: []string{":3: migrations.inboundPerNode: is the string \"2\"; write a whole number"}},
		"a number of letters":   {content: ofController + "launcherImage: 5", want: []string{":3: launcherImage: is the number 5; write a string, in quotes"}},
		"a fraction":            {content: ofController + "log: {verbosity: 0.5}", want: []string{":3: log.verbosity: is the number 0.5; write a whole number"}},
		"a number beyond all":   {content: ofController + "log: {verbosity: 99999999999999999999}", want: []string{":3: log.verbosity: is "}},
		"yes is no boolean":     {content: ofController + "migrations: {unfair: yes}", want: []string{":3: migrations.unfair: is the string \"yes\"; write true or false"}},
		"a time without a unit": {content: ofController + "nodeSilentAfter: 10", want: []string{":3: nodeSilentAfter: is the number 10; write a duration with its unit"}},
		"a time that is none":   {content: ofController + "nodeSilentAfter: soon", want: []string{":3: nodeSilentAfter: is \"soon\"; write a duration with its unit"}},
		"a quantity that isn't": {content: ofController + "migrations: {bandwidthPerNode: fast}", want: []string{":3: migrations.bandwidthPerNode: is \"fast\"; write a quantity, such as 500Mi"}},
		"a list for a word":     {content: ofController + "launcherImage: [a]", want: []string{":3: launcherImage: is a list; write a string"}},
		"a word for a list":     {content: ofController + "webhooks: {trust: me}", want: []string{":3: webhooks.trust: is the string \"me\"; write a list of strings"}},
		"a list of many things": {content: ofController + "additionalLauncherLabelsSync:\n- a\n- 1\n- {}", want: []string{":5: additionalLauncherLabelsSync[1]: is the number 1", ":6: additionalLauncherLabelsSync[2]: is an object"}},
		"a share of words":      {content: ofController + "migrations: {namespaceWeights: {a: big}}", want: []string{":3: migrations.namespaceWeights[a]: is the string \"big\"; write a number"}},
		"shares in a list":      {content: ofController + "migrations: {namespaceWeights: [a]}", want: []string{":3: migrations.namespaceWeights: is a list; write an object with a number"}},
		"an alias of itself":    {content: ofController + "log: &l\n  verbosity: *l", want: []string{":3: log.verbosity: is an object; write a whole number"}},
		"all faults are reported, in order": {
			content: ofNode + "drain: -1m\nheartbeat: 5\naddress: here\nno: 1\n",
			want: []string{
				":3: drain: \"-1m\" is not a time to wait for migrations", ":4: heartbeat: is the number 5", ":5: address: \"here\" is not an IP address", ":6: no: is not a field",
				"", "", "", // its certificates
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := configfile.Read("f.yaml", []byte(tt.content))
			var faults configfile.Faults
			if (err != nil) != (tt.want != nil) || err != nil && !errors.As(err, &faults) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if len(faults) != len(tt.want) {
				t.Fatalf("%d faults, want %d:\n%v", len(faults), len(tt.want), err)
			}
			left := strings.Split(faults.Error(), "\n")
			for _, want := range tt.want {
				if want == "" {
					continue
				}
				found := false
				for _, line := range left {
					found = found || strings.HasPrefix(line, "f.yaml"+want)
				}
				if !found {
					t.Errorf("no fault %q in\n%v", want, err)
				}
			}
		})
	}
}

func TestFaults_Location(t *testing.T) {
	for name, tt := range map[string]struct {
		kind, file string // no file if both are empty
		flags      []string
		want       string // all faults
		ofFlags    bool
	}{
		"flags": {
			flags: []string{"--migrations-inbound-per-node=0", "--migrations-lent=-2", "--client-qps=0", "--metrics-address=x"}, ofFlags: true,
			want: "--client-qps 0 must be above 0, otherwise no request is sent\n" +
				"--metrics-address \"x\" is not an address: address x: missing port in address; use HOST:PORT or :PORT\n" +
				"--migrations-inbound-per-node 0 must be 1 or more, otherwise no node accepts migrations\n" +
				"--migrations-lent -2 must be positive, 0 for as many as the cluster has slots, or -1 for none",
		},
		"a file": {
			file: "client: {burst: 0}\nlog: {verbosity: -1}\nlauncherImage: ''\nnodeSilentAfter: -5m",
			want: "FILE:3: client.burst: 0 must be 1 or more, otherwise no request is sent\nFILE:4: log.verbosity: -1 must be 0 or more\n" +
				"FILE:5: launcherImage: is required: the image of launcher Pods\nFILE:6: nodeSilentAfter: \"-5m\" must not be negative",
		},
		"both, each its own": {
			file: "migrations:\n  inboundPerNode: 0\n  bandwidthPerNode: -1", flags: []string{"--migrations-inbound-per-node=-7"},
			want: "--migrations-inbound-per-node -7 must be 1 or more, otherwise no node accepts migrations\n" +
				"FILE:5: migrations.bandwidthPerNode: \"-1\" must be a quantity above 0, such as 500Mi, or 0 for no budget",
		},
		"a flag mends the file":     {file: "migrations: {inboundPerNode: 0}", flags: []string{"--migrations-inbound-per-node=1"}},
		"a port that is not fixed":  {file: "health: {address: ':0'}", want: "FILE:3: health.address: \":0\" is not an address: port 0 is not a fixed port; use HOST:PORT or :PORT"},
		"a port that is a name":     {flags: []string{"--health-address=:http"}, ofFlags: true, want: "--health-address \":http\" is not an address: strconv.ParseUint: parsing \"http\": invalid syntax; use HOST:PORT or :PORT"},
		"webhooks without proof":    {file: "webhooks: {address: ':9443'}", want: "FILE:3: webhooks.certDir: is required: webhooks are served over TLS only; specify the directory of tls.crt and tls.key, or webhooks.certSecret (--webhook-cert-secret)"},
		"webhooks with both proofs": {file: "webhooks: {address: ':9443', certDir: /c, certSecret: a/b}", want: "FILE:3: webhooks.certSecret: and webhooks.certDir (--webhook-cert-dir) exclude each other; specify one of them"},
		"webhooks of no Secret":     {file: "webhooks: {address: ':9443', certSecret: b}", want: "FILE:3: webhooks.certSecret: \"b\" is not NAMESPACE/NAME of a Secret"},
		"webhooks of a moment":      {flags: []string{"--webhook-address=:9443", "--webhook-cert-secret=a/b", "--webhook-cert-lifetime=1s"}, ofFlags: true, want: "--webhook-cert-lifetime \"1s\" is too short to rotate; must be 15s or more"},
		"webhooks of nowhere": {
			flags: []string{"--webhook-cert-dir=/c", "--webhook-trust=me"}, ofFlags: true,
			want: "--webhook-cert-dir has no effect without webhooks.address (--webhook-address)\n--webhook-trust has no effect without webhooks.address (--webhook-address)",
		},
		"security of no metrics": {
			file: "metrics: {secure: true}", want: "FILE:3: metrics.secure: has no effect without metrics.address (--metrics-address)",
		},
		"certificates for plain metrics": {
			file: "metrics: {address: ':1', certDir: /c}", want: "FILE:3: metrics.certDir: has no effect without metrics.secure (--metrics-secure)",
		},
		"a share of nothing": {
			file: "migrations:\n  namespaceWeights:\n    a: 1\n    b: .inf\n    c: 0",
			want: "FILE:6: migrations.namespaceWeights[b]: is \".inf\"; write a number\n" +
				"FILE:7: migrations.namespaceWeights[c]: 0 is not the share of a namespace; each needs a name and a number above 0",
		},
		"an empty key": {flags: []string{"--additional-launcher-annotations-sync=a,"}, ofFlags: true, want: "--additional-launcher-annotations-sync \"\" is not a valid key; remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := configfile.Source[*configfile.ControllerConfiguration]{New: configfile.NewController}
			dir := t.TempDir()
			if tt.file != "" {
				s.File = filepath.Join(dir, "c.yaml")
				if err := os.WriteFile(s.File, []byte(ofController+tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
			configfile.Flags(fs, configfile.NewController().Options(), &s.Given)
			if err := fs.Parse(tt.flags); err != nil {
				t.Fatal(err)
			}
			_, err := s.Load()
			var faults configfile.Faults
			errors.As(err, &faults)
			if d := cmp.Diff(tt.want, strings.ReplaceAll(faults.Error(), filepath.Join(dir, "c.yaml"), "FILE")); d != "" || (err != nil) != (tt.want != "") {
				t.Errorf("-want +got\n%s%v", d, err)
			}
			if err != nil && faults.OfFlags() != tt.ofFlags {
				t.Errorf("of flags alone: %t", faults.OfFlags())
			}
		})
	}
}

func TestNodeConfiguration_Validate(t *testing.T) {
	sound := func() *configfile.NodeConfiguration {
		c := configfile.NewNode()
		c.NodeName, c.Address, c.Migration.Insecure = "node-a", "192.0.2.1", true
		return c
	}
	certified := func(c *configfile.NodeConfiguration, cert, key, ca string) {
		c.Migration.Insecure, c.Migration.Cert, c.Migration.Key, c.Migration.CA = false, cert, key, ca
	}
	for name, tt := range map[string]struct {
		edit func(*configfile.NodeConfiguration)
		want []string // the fields
	}{
		"sound":                    {edit: func(*configfile.NodeConfiguration) {}},
		"of IPv6":                  {edit: func(c *configfile.NodeConfiguration) { c.Address = "2001:db8::1" }},
		"no name":                  {func(c *configfile.NodeConfiguration) { c.NodeName = "" }, []string{"nodeName"}},
		"no address":               {func(c *configfile.NodeConfiguration) { c.Address = "" }, []string{"address"}},
		"a host's name":            {func(c *configfile.NodeConfiguration) { c.Address = "node-a.example.test" }, []string{"address"}},
		"an address with a port":   {func(c *configfile.NodeConfiguration) { c.Address = "192.0.2.1:16509" }, []string{"address"}},
		"no hypervisor":            {func(c *configfile.NodeConfiguration) { c.Hypervisor = "" }, []string{"hypervisor"}},
		"no state":                 {func(c *configfile.NodeConfiguration) { c.StateDir = "" }, []string{"stateDir"}},
		"paths that lead anywhere": {func(c *configfile.NodeConfiguration) { c.Launchers, c.Cgroups, c.DevicePlugins = "a", "b", "c" }, []string{"launchers", "cgroups", "devicePlugins"}},
		"containers of nobody":     {func(c *configfile.NodeConfiguration) { c.Cgroups = "/sys/fs/cgroup" }, []string{"cgroups"}},
		"containers of launchers":  {edit: func(c *configfile.NodeConfiguration) { c.Launchers, c.Cgroups = "/pods", "/sys/fs/cgroup" }},
		"times that went by": {func(c *configfile.NodeConfiguration) {
			c.Heartbeat.Duration, c.ProgressEvery.Duration, c.Drain.Duration = -1, -1, -1
		}, []string{"heartbeat", "progressEvery", "drain"}},
		"certificates":              {edit: func(c *configfile.NodeConfiguration) { certified(c, "c", "k", "a") }},
		"no certificates":           {func(c *configfile.NodeConfiguration) { certified(c, "", "", "") }, []string{"migration.cert", "migration.key", "migration.ca"}},
		"no authority":              {func(c *configfile.NodeConfiguration) { certified(c, "c", "k", "") }, []string{"migration.ca"}},
		"no key":                    {func(c *configfile.NodeConfiguration) { certified(c, "c", "", "a") }, []string{"migration.key"}},
		"certificates for nothing":  {func(c *configfile.NodeConfiguration) { c.Migration.CA = "a" }, []string{"migration.insecure"}},
		"sockets in a relative one": {func(c *configfile.NodeConfiguration) { c.Migration.Dir = "migrations" }, []string{"migration.dir"}},
		"sockets without room":      {func(c *configfile.NodeConfiguration) { c.Migration.Dir = "/" + strings.Repeat("a", 50) }, []string{"migration.dir"}},
		"no way to the API server":  {func(c *configfile.NodeConfiguration) { c.Client.QPS = -1 }, []string{"client.qps"}},
	} {
		c := sound()
		tt.edit(c)
		var got []string
		for _, e := range c.Validate() {
			got = append(got, e.Field)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
}

func TestLoad_MissingFile(t *testing.T) {
	s := configfile.Source[*configfile.NodeConfiguration]{New: configfile.NewNode, File: filepath.Join(t.TempDir(), "absent")}
	if _, err := s.Load(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "specify a readable file") {
		t.Errorf("error %v", err)
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{ofController, ofNode + "migration: {insecure: true}", "a: &a [*a]", ofController + "log: &l {verbosity: *l}\n<<: *l", "? {a: b}\n: c"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := configfile.Read("f", content)
		var faults configfile.Faults
		if err == nil && c == nil || err != nil && (!errors.As(err, &faults) || len(faults) == 0) {
			t.Errorf("%v, %v", c, err)
		}
		for _, fault := range faults {
			if fault.Reason == "" || fault.File != "f" {
				t.Errorf("%+v", fault)
			}
		}
	})
}
