// SPDX-License-Identifier: Apache-2.0

// Package archtest keeps the arrows between the packages of the module: which may import which is a table, [edges], and
// what is not in it fails, as does what is in it and is not used any more.
//
// The SDK has three floors. What decides is pure: expectations, handoff, template, vmi, migration, domain and the packages
// below them know types of the API and nothing that runs. What is called ...ctrl carries out their plans and knows
// controller-runtime. Parts of a node agent, such as domain/mounts, stand beside these; domain/libvirt is the only cgo.
// refdaemon, examples and internal are above all of it.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/virtloom/virtloom"

// pkg is a package in the output of "go list -json".
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	CgoFiles   []string
}

// name is the package's path in the module, "." for its root.
func (p pkg) name() string {
	if p.ImportPath == module {
		return "."
	}
	return strings.TrimPrefix(p.ImportPath, module+"/")
}

// edges are the packages of the module that each package of the SDK may import.
var edges = map[string][]string{
	"expectations": {}, "handoff": {},
	"internal/vmistatus": {}, "internal/durable": {}, "internal/vmipatch": {}, "internal/plaintext": {}, "internal/vmidefaults": {}, "internal/volumeclaim": {}, "internal/launcherpod": {},

	"template/render":  {"vmi/validate"},
	"template":         {"template/render", "vmi/validate"},
	"template/offline": {"template", "template/render", "vm", "vm/admit", "vm/instancetype", "vmi/admit"},
	"vmi":              {"handoff", "internal/launcherpod", "internal/vmistatus", "internal/volumeclaim", "vmi/validate"},
	"vmi/diagnose":     {"handoff", "internal/plaintext", "internal/vmistatus", "vmi"},
	"vmi/admit":        {"internal/vmidefaults", "vmi/validate"},
	"vmi/validate":     {"internal/vmidefaults"},
	"vm":               {"handoff", "internal/vmistatus", "internal/volumeclaim", "vm/instancetype", "vm/liveupdate", "vm/restart"},
	"vm/instancetype":  {"internal/vmidefaults"},
	"vm/admit":         {"vm", "vm/instancetype", "vmi/admit", "vmi/validate"},
	"vm/liveupdate":    {"internal/vmistatus"},
	"vm/restart":       {"internal/vmidefaults"},

	"migration/queue":        {},
	"migration/policy":       {},
	"migration/placement":    {"internal/launcherpod"},
	"migration":              {"handoff", "internal/vmistatus", "internal/volumeclaim", "internal/launcherpod", "migration/placement", "migration/policy", "migration/queue"},
	"migration/explain":      {"handoff", "internal/plaintext", "migration", "migration/placement", "migration/policy", "migration/queue"},
	"migration/evacuation":   {"migration", "internal/launcherpod", "migration/queue", "internal/vmistatus"},
	"migration/migrationsim": {"handoff", "migration", "migration/evacuation", "migration/placement", "migration/policy", "migration/queue"},

	"domain/internal/relay": {}, "domain/internal/xmlspec": {},
	"domain/stats": {}, "domain/guestagent": {},
	"domain":                  {"domain/guestagent", "domain/internal/relay", "domain/internal/xmlspec", "domain/stats"},
	"domain/transport":        {"domain"},
	"domain/action":           {"domain", "domain/transport", "handoff", "internal/vmistatus"},
	"domain/convert":          {"domain", "domain/internal/cpupool", "domain/internal/xmlspec", "vmi/validate"},
	"domain/internal/cpupool": {"domain"},
	"domain/convert/assume":   {"domain", "domain/convert", "domain/internal/xmlspec", "vmi/validate"},
	"domain/diff":             {"domain", "domain/convert", "domain/internal/xmlspec"},
	"domain/informer":         {"domain", "domain/internal/relay"},
	"domain/fleet":            {"domain", "domain/guestagent", "domain/informer", "domain/stats"},
	"domain/status":           {"domain", "domain/action", "domain/convert", "domain/guestagent", "domain/internal/xmlspec", "handoff", "internal/vmistatus"},
	"domain/migrate":          {"domain", "domain/internal/xmlspec"},
	"domain/workspace":        {"domain", "domain/convert", "domain/status", "internal/volumeclaim"},
	"domain/plan":             {"domain", "domain/action", "domain/convert", "domain/diff", "domain/guestagent", "domain/internal/xmlspec", "domain/migrate", "domain/status", "domain/transport", "handoff", "internal/vmistatus"},

	"internal/measure": {}, "internal/tracecontext": {}, "internal/readonly": {}, "internal/backlog": {}, "internal/optional": {}, "internal/failuretext": {},
	"expectations/expectationsctrl": {"expectations", "internal/measure"},
	"template/templatectrl":         {"internal/volumeclaim", "template/render"},
	"vmi/vmictrl": {
		"expectations", "expectations/expectationsctrl", "handoff", "internal/backlog", "internal/measure", "internal/optional", "internal/readonly", "internal/failuretext",
		"internal/tracecontext", "internal/vmipatch", "template", "template/render", "template/templatectrl", "vmi", "vmi/diagnose",
	},
	"vm/vmctrl": {
		"expectations", "expectations/expectationsctrl", "internal/backlog", "internal/optional", "internal/readonly", "internal/failuretext", "template/templatectrl", "vm", "vm/instancetype",
	},
	"migration/migrationctrl": {
		"expectations", "expectations/expectationsctrl", "handoff", "internal/backlog", "internal/measure", "internal/plaintext", "internal/readonly",
		"internal/failuretext", "internal/tracecontext", "internal/vmipatch", "migration", "migration/evacuation", "migration/explain", "migration/migrationsim",
		"migration/placement", "migration/policy", "migration/queue", "template", "template/render", "template/templatectrl",
	},
	"domain/domainctrl": {
		"domain", "domain/action", "domain/convert", "domain/guestagent", "domain/informer", "domain/migrate", "domain/plan", "domain/status", "domain/transport", "domain/workspace",
		"handoff", "internal/measure", "internal/tracecontext", "internal/vmipatch",
	},
	"domain/nodectrl": {"domain", "handoff", "template/templatectrl"},

	"domain/cgroup": {"domain"}, "domain/deviceplugin": {}, "domain/migrationproxy": {"domain", "domain/transport"},
	"domain/hostdevice":          {"domain", "domain/convert", "domain/deviceplugin"},
	"domain/mounts":              {"domain", "domain/convert", "internal/durable", "internal/volumeclaim"},
	"domain/network":             {"domain", "domain/convert", "domain/internal/xmlspec", "domain/network/dhcp", "internal/durable"},
	"domain/network/dhcp":        {},
	"domain/launcher/launcherpb": {},
	"domain/launcher":            {"domain", "domain/convert", "domain/fleet", "domain/guestagent", "domain/launcher/launcherpb", "domain/plan", "domain/stats"},
	"domain/libvirt":             {"domain", "domain/guestagent", "domain/migrate", "domain/stats"},
	"domain/memory":              {"domain", "domain/convert", "domain/guestagent", "domain/migrate", "domain/plan", "domain/stats"},
	"domain/domaintest":          {"domain", "domain/guestagent", "domain/memory", "domain/stats", "domain/transport"},
}

// above are the folders whose packages may import whatever they like: only they import each other.
var above = []string{
	"refdaemon", "examples", "internal", "hack", "domain/internal/domainfixture", "migration/internal/migrationfixture", "migration/internal/migrationworld",
	"vmi/internal/vmifixture",
}

// api are the types that everybody may know.
var api = []string{"k8s.io/apimachinery", "kubevirt.io/api", "k8s.io/api", "k8s.io/utils"}

// pure are the packages that know no more of other modules than this and [api].
var pure = map[string][]string{
	"expectations": {}, "handoff": {}, "internal/vmistatus": {}, "internal/durable": {}, "internal/vmipatch": {}, "internal/plaintext": {},
	"internal/vmidefaults": {}, "internal/volumeclaim": {}, "vmi/validate": {}, "vmi/admit": {}, "template": {"kubevirt.io/containerized-data-importer-api"}, "template/render": {"kubevirt.io/containerized-data-importer-api"},
	"template/offline": {"sigs.k8s.io/yaml", "sigs.k8s.io/json", "kubevirt.io/containerized-data-importer-api"}, "vmi": {"kubevirt.io/containerized-data-importer-api"},
	"vm": {"kubevirt.io/containerized-data-importer-api"}, "vm/liveupdate": {}, "vm/restart": {}, "vm/admit": {"kubevirt.io/containerized-data-importer-api"},
	"vm/instancetype": {"kubevirt.io/containerized-data-importer-api"}, "vmi/diagnose": {}, "migration": {}, "migration/queue": {}, "migration/policy": {}, "migration/evacuation": {}, "migration/explain": {},
	"migration/migrationsim": {},
	"migration/placement":    {"k8s.io/component-helpers"}, "internal/launcherpod": {},
	"domain": {"libvirt.org/go/libvirtxml"}, "domain/convert": {"libvirt.org/go/libvirtxml"}, "domain/diff": {"libvirt.org/go/libvirtxml"},
	"domain/informer": {}, "domain/fleet": {}, "domain/status": {"libvirt.org/go/libvirtxml"}, "domain/migrate": {"libvirt.org/go/libvirtxml"},
	"domain/plan": {"libvirt.org/go/libvirtxml"}, "domain/internal/xmlspec": {"libvirt.org/go/libvirtxml"}, "domain/internal/relay": {},
	"domain/stats": {}, "domain/guestagent": {}, "domain/transport": {}, "domain/action": {},
}

// only lists who may depend on an import, directly or not.
var only = map[string][]string{
	"sigs.k8s.io/controller-runtime":            {"/expectationsctrl", "/templatectrl", "/vmictrl", "/vmctrl", "/migrationctrl", "/domainctrl", "/nodectrl", "refdaemon", "internal/", "examples/"},
	"k8s.io/client-go":                          {"/expectationsctrl", "/templatectrl", "/vmictrl", "/vmctrl", "/migrationctrl", "/domainctrl", "/nodectrl", "refdaemon", "internal/", "examples/"},
	"google.golang.org/grpc":                    {"domain/launcher", "domain/deviceplugin", "domain/hostdevice", "refdaemon", "internal/"},
	"libvirt.org/go/libvirt":                    {"domain/libvirt", "refdaemon", "internal/"},
	"libvirt.org/go/libvirtxml":                 {"domain", "refdaemon", "internal/", "examples/"},
	"github.com/google/go-containerregistry":    {"refdaemon", "internal/", "hack/"},
	"go.opentelemetry.io/otel/sdk":              {"refdaemon", "internal/"},
	"go.opentelemetry.io/otel/exporters":        {"refdaemon", "internal/"},
	"github.com/virtloom/virtloom/internal/rig": {"internal/", "refdaemon/e2e"},
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps,CgoFiles"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func has(importPath, prefix string) bool {
	return importPath == prefix || strings.HasPrefix(importPath, prefix+"/")
}

// within reports whether the package is in one of the folders.
func within(name string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return has(name, f) })
}

func TestPackages_Names(t *testing.T) {
	for _, p := range list(t, module+"/...") {
		if slices.Contains([]string{"util", "utils", "common", "types", "helpers"}, path.Base(p.ImportPath)) {
			t.Errorf("package %s has a name that says nothing", p.name())
		}
	}
}

// TestEdges_MatchTable: an import is a decision, and so is its end.
func TestEdges_MatchTable(t *testing.T) {
	there := map[string]bool{}
	for _, p := range list(t, "-tags", "libvirt_dlopen", module+"/...") {
		name := p.name()
		there[name] = true
		may, listed := edges[name]
		if !listed {
			if name != "." && !within(name, above) {
				t.Errorf("package %s is not in the table of edges", name)
			}
			continue
		}
		var uses []string
		for _, imp := range p.Imports {
			if has(imp, module) {
				uses = append(uses, pkg{ImportPath: imp}.name())
			}
		}
		for _, u := range uses {
			if !slices.Contains(may, u) {
				t.Errorf("%s imports %s, which the table does not have", name, u)
			}
		}
		for _, m := range may {
			if !slices.Contains(uses, m) {
				t.Errorf("%s may import %s and does not: take it out of the table", name, m)
			}
		}
	}
	for name := range edges {
		if !there[name] {
			t.Errorf("the table has package %s, which is not there", name)
		}
	}
}

func TestPurePackages_ImportTypesOnly(t *testing.T) {
	standard := map[string]bool{}
	for _, p := range list(t, "std") {
		standard[p.ImportPath] = true
	}
	for _, p := range list(t, module+"/...") {
		more, limited := pure[p.name()]
		if !limited {
			continue
		}
		for _, imp := range p.Imports {
			if !standard[imp] && !has(imp, module) && !within(imp, slices.Concat(api, more)) {
				t.Errorf("%s imports %s", p.name(), imp)
			}
		}
	}
}

func TestAdmission_Imports(t *testing.T) {
	for _, p := range list(t, module+"/vmi/admit") {
		for _, imp := range p.Deps {
			if has(imp, module) && !within(pkg{ImportPath: imp}.name(), []string{"internal/vmidefaults", "vmi/validate"}) {
				t.Errorf("%s depends on %s", p.name(), imp)
			}
		}
	}
}

// TestPrograms_DoNotLinkTesting: what is in production needs no test framework, nor its flags.
func TestPrograms_DoNotLinkTesting(t *testing.T) {
	for _, p := range list(t, "-tags", "libvirt_dlopen", module+"/refdaemon", module+"/examples/...") {
		if slices.Contains(p.Deps, "testing") {
			t.Errorf("%s depends on testing", p.name())
		}
	}
}

func TestHeavyImports_Confined(t *testing.T) {
	for _, p := range list(t, "-deps", "-tags", "libvirt_dlopen", module+"/...") {
		if !has(p.ImportPath, module) {
			continue
		}
		for heavy, may := range only {
			if !slices.ContainsFunc(p.Deps, func(d string) bool { return has(d, heavy) }) || has(p.ImportPath, heavy) {
				continue
			}
			if !slices.ContainsFunc(may, func(m string) bool { return strings.HasPrefix(p.name(), m) || strings.Contains(p.name(), m) }) {
				t.Errorf("%s depends on %s", p.name(), heavy)
			}
		}
		if len(p.CgoFiles) > 0 && p.name() != "domain/libvirt" {
			t.Errorf("%s uses cgo", p.name())
		}
	}
}
