// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// head begins a file of a kind.
func head(kind string) string {
	return "apiVersion: " + configfile.APIVersion + "\nkind: " + kind + "\n"
}

// fields are the paths of what a struct has in a file, without those of its header.
func fields(of reflect.Type, above string) []string {
	var paths []string
	for i := range of.NumField() {
		f := of.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(above+"."+name, ".")
		switch {
		case f.Type == reflect.TypeFor[metav1.TypeMeta]():
		case rest == "inline":
			paths = append(paths, fields(f.Type, above)...)
		case f.Type.Kind() == reflect.Struct && strings.HasPrefix(f.Type.PkgPath(), "github.com/virtloom"):
			paths = append(paths, fields(f.Type, path)...)
		default:
			paths = append(paths, path)
		}
	}
	return paths
}

func TestOptions_MatchFields(t *testing.T) {
	for _, kind := range configfile.Kinds() {
		c := configfile.NewConfiguration(kind)
		var options, flags []string
		for _, o := range c.Options() {
			options, flags = append(options, o.Field), append(flags, o.Flag)
			if o.Usage == "" {
				t.Errorf("%s: %s says nothing", kind, o.Field)
			}
		}
		have := fields(reflect.TypeOf(c).Elem(), "")
		slices.Sort(options)
		slices.Sort(have)
		if d := cmp.Diff(have, options); d != "" {
			t.Errorf("%s: fields (-) and options (+):\n%s", kind, d)
		}
		slices.Sort(flags)
		if len(slices.Compact(flags)) != len(options) {
			t.Errorf("%s: a flag is there twice: %q", kind, flags)
		}
	}
	if configfile.NewConfiguration("Configuration") != nil {
		t.Error("there is another kind")
	}
}

// other is a text for a value that is not what it is.
func other(v pflag.Value) string {
	switch v.Type() {
	case "bool":
		if v.String() == "true" {
			return "false"
		}
		return "true"
	case "int", "number", "quantity":
		return "17"
	case "duration":
		return "17m"
	case "shares":
		return "a=17"
	}
	return "seventeen"
}

func TestOptions_SetFields(t *testing.T) {
	for _, kind := range configfile.Kinds() {
		for i, o := range configfile.NewConfiguration(kind).Options() {
			c := configfile.NewConfiguration(kind)
			if err := c.Options()[i].Value.Set(other(o.Value)); err != nil {
				t.Errorf("%s: %v", o.Field, err)
			}
			// The struct, as any other program would write it, has the value at that path.
			text, err := yaml.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			var at any
			if err := yaml.Unmarshal(text, &at); err != nil {
				t.Fatal(err)
			}
			for part := range strings.SplitSeq(o.Field, ".") {
				section, ok := at.(map[string]any)
				if !ok {
					t.Fatalf("%s is not in\n%s", o.Field, text)
				}
				at = section[part]
			}
			fresh := configfile.NewConfiguration(kind)
			if changes := configfile.Changes(fresh, c); len(changes) != 1 || changes[0].Field != o.Field || changes[0].Live != o.Live {
				t.Errorf("setting %s changes %+v (value %v)", o.Field, changes, at)
			}
			// And as a file it reads back.
			read, err := configfile.Read("f", text)
			if faults := (configfile.Faults{}); errors.As(err, &faults) && !slices.ContainsFunc(faults, func(f configfile.Fault) bool {
				return strings.Contains(f.Reason, "write ") || strings.Contains(f.Reason, "no field")
			}) {
				continue // it cannot be alone, or not with this value
			}
			if err != nil {
				t.Errorf("%s: %v in\n%s", o.Field, err, text)
				continue
			}
			if changes := configfile.Changes(c, read); len(changes) > 0 {
				t.Errorf("%s: read back, %+v differ", o.Field, changes)
			}
		}
	}
}

func TestPrint_RoundTrip(t *testing.T) {
	for _, kind := range configfile.Kinds() {
		t.Run(kind, func(t *testing.T) {
			c := configfile.NewConfiguration(kind)
			if n, ok := c.(*configfile.NodeConfiguration); ok {
				n.NodeName, n.Address, n.Migration.Insecure = "on", "192.0.2.1", true
			}
			if n, ok := c.(*configfile.ControllerConfiguration); ok {
				n.AdditionalLauncherLabelsSync = []string{"a", "true"}
				n.Migrations.NamespaceWeights = map[string]float64{"yes": 0.25, "b": 4}
			}
			var b bytes.Buffer
			if err := configfile.Print(&b, c); err != nil {
				t.Fatal(err)
			}
			read, err := configfile.Read("f", b.Bytes())
			if err != nil {
				t.Fatalf("%v\n%s", err, b.String())
			}
			if changes := configfile.Changes(c, read); len(changes) > 0 {
				t.Errorf("%+v differ:\n%s", changes, b.String())
			}
			for _, o := range c.Options() {
				if !strings.Contains(b.String(), "Flag --"+o.Flag+";") && !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(b.String(), "#", "")), " "), "Flag --"+o.Flag+";") {
					t.Errorf("no comment names --%s", o.Flag)
				}
			}
		})
	}
}

func TestSource_Precedence(t *testing.T) {
	for name, tt := range map[string]struct {
		file  string // of a ControllerConfiguration; no file if empty
		flags []string
		want  func(*configfile.ControllerConfiguration)
	}{
		"nothing is said":    {want: func(*configfile.ControllerConfiguration) {}},
		"an empty file":      {file: "{}", want: func(*configfile.ControllerConfiguration) {}},
		"what is absent":     {file: "log: null\nlauncherImage: null\nmigrations: {inboundPerNode: ~}", want: func(*configfile.ControllerConfiguration) {}},
		"a file":             {file: "migrations: {inboundPerNode: 4}", want: func(c *configfile.ControllerConfiguration) { c.Migrations.InboundPerNode = 4 }},
		"a flag":             {flags: []string{"--migrations-inbound-per-node", "5"}, want: func(c *configfile.ControllerConfiguration) { c.Migrations.InboundPerNode = 5 }},
		"a flag before file": {file: "migrations: {inboundPerNode: 4}", flags: []string{"--migrations-inbound-per-node=5"}, want: func(c *configfile.ControllerConfiguration) { c.Migrations.InboundPerNode = 5 }},
		"a flag at its default": {
			file: "leaderElection: {enabled: false}\nmigrations: {cooldown: 1h}", flags: []string{"--leader-elect", "--migrations-cooldown=5m"},
			want: func(*configfile.ControllerConfiguration) {},
		},
		"a flag that switches off": {flags: []string{"--leader-elect=false"}, want: func(c *configfile.ControllerConfiguration) { c.LeaderElection.Enabled = false }},
		"verbosity":                {flags: []string{"-v"}, want: func(c *configfile.ControllerConfiguration) { c.Log.Verbosity = 1 }},
		"verbosity as it was":      {file: "log: {verbosity: 3}", flags: []string{"-v=false"}, want: func(*configfile.ControllerConfiguration) {}},
		"verbosity in numbers":     {flags: []string{"--verbosity=4"}, want: func(c *configfile.ControllerConfiguration) { c.Log.Verbosity = 4 }},
		"a list of a file":         {file: "additionalLauncherLabelsSync: [a, b]", want: func(c *configfile.ControllerConfiguration) { c.AdditionalLauncherLabelsSync = []string{"a", "b"} }},
		"a list of flags replaces that of the file": {
			file: "additionalLauncherLabelsSync: [a, b]", flags: []string{"--additional-launcher-labels-sync=c,d", "--additional-launcher-labels-sync=e"},
			want: func(c *configfile.ControllerConfiguration) { c.AdditionalLauncherLabelsSync = []string{"c", "d", "e"} },
		},
		"shares of flags replace those of the file": {
			file: "migrations: {namespaceWeights: {a: 1}}", flags: []string{"--migrations-namespace-weights=b=2,c=0.5", "--migrations-namespace-weights=b=3"},
			want: func(c *configfile.ControllerConfiguration) {
				c.Migrations.NamespaceWeights = map[string]float64{"b": 3, "c": 0.5}
			},
		},
		"an alias": {
			file: "client: {burst: &n 7}\nmigrations: {inboundPerNode: *n}",
			want: func(c *configfile.ControllerConfiguration) { c.Client.Burst, c.Migrations.InboundPerNode = 7, 7 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := configfile.Source[*configfile.ControllerConfiguration]{New: configfile.NewController}
			if tt.file != "" {
				s.File = filepath.Join(t.TempDir(), "c.yaml")
				content := head(configfile.KindController) + strings.TrimSuffix(tt.file, "{}")
				if err := os.WriteFile(s.File, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
			configfile.Flags(fs, configfile.NewController().Options(), &s.Given)
			if err := fs.Parse(tt.flags); err != nil {
				t.Fatal(err)
			}
			// It is read again when the file changes, with the same result.
			for range 2 {
				got, err := s.Load()
				if err != nil {
					t.Fatal(err)
				}
				want := configfile.NewController()
				tt.want(want)
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("-want +got\n%s", d)
				}
			}
		})
	}
}

func TestDuration_ShortForm(t *testing.T) {
	c := configfile.NewController()
	for d, want := range map[time.Duration]string{
		0: "0s", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", 24 * time.Hour: "24h", 61 * time.Minute: "1h1m", time.Hour + time.Second: "1h0m1s",
	} {
		c.Migrations.AgeAfter.Duration = d
		for _, o := range c.Options() {
			if o.Flag == "migrations-age-after" && o.Value.String() != want {
				t.Errorf("%s is written %s", want, o.Value)
			}
		}
	}
}
