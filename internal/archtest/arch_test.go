// SPDX-License-Identifier: Apache-2.0

// Package archtest keeps the layers of the module.
//
//	layer 0  expectations  handoff  internal/vmistatus  internal/durable  internal/vmipatch
//	         internal/plaintext  internal/vmirules
//	layer 1  template  vmi  migration  domain
//	         vmi/admit imports none of them; template/offline lies above both
//	         template and vmi/admit, with sigs.k8s.io/yaml and json
//	         internal/measure and /tracecontext, which know Prometheus and
//	         OpenTelemetry, lie above all of them, and so does
//	         internal/readonly and internal/backlog, which know controller-runtime
//	layer 2  …ctrl, the only packages of the SDK that know controller-runtime;
//	         expectations/expectationsctrl and template/templatectrl lie below
//	         the others, which use them; beside them, without it: the parts of a
//	         node agent (domain/migrationproxy, /launcher, /deviceplugin, /cgroup,
//	         /mounts, /network)
//	layer 3  domain/libvirt (the only cgo)  domain/domaintest
//	layer 4  refdaemon  examples  internal  hack
//
// Arrows point down only, and packages of one layer do not import each other.
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

// pkg is what go list tells of a package.
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

// layers gives each package of the module its layer; a path ending in /... is
// a prefix.
var layers = map[string]float64{
	"expectations": 0, "handoff": 0, "internal/vmistatus": 0, "internal/durable": 0, "internal/vmipatch": 0, "internal/plaintext": 0, "internal/vmirules": 0,
	"template": 1, "vmi": 1, "migration": 1, "domain": 1,
	"internal/measure": 1.4, "internal/tracecontext": 1.4, "internal/readonly": 1.4, "internal/backlog": 1.4, "internal/retold": 1.4,
	"vmi/admit": 1.1, "template/offline": 1.2, "migration/migrationsim": 1.2, "expectations/expectationsctrl": 1.5, "template/templatectrl": 1.5,
	"vmi/vmictrl": 2, "migration/migrationctrl": 2, "domain/domainctrl": 2, "domain/nodectrl": 2,
	"domain/migrationproxy": 2, "domain/deviceplugin": 2, "domain/cgroup": 2, "domain/mounts": 2, "domain/network": 2,
	"domain/launcher/launcherpb": 2, "domain/launcher": 2.5,
	"domain/libvirt": 3, "domain/domaintest": 3,
	".": 4, "refdaemon/...": 4, "examples/...": 4, "internal/...": 4, "hack/...": 4,
}

// external lists what a package may import from outside of the standard
// library and this module, by its layer; longest prefix counts.
var external = map[float64][]string{
	0:   {"k8s.io/apimachinery", "kubevirt.io/api", "k8s.io/api"},
	1:   {"k8s.io/apimachinery", "kubevirt.io/api", "kubevirt.io/containerized-data-importer-api", "k8s.io/api", "k8s.io/component-helpers", "k8s.io/utils", "libvirt.org/go/libvirtxml"},
	1.1: {"k8s.io/apimachinery", "kubevirt.io/api", "k8s.io/api"},
	1.2: {"k8s.io/apimachinery", "kubevirt.io/api", "k8s.io/api", "sigs.k8s.io/yaml", "sigs.k8s.io/json"},
}

// only lists who may depend on an import, directly or not.
var only = map[string][]string{
	"sigs.k8s.io/controller-runtime":            {"/expectationsctrl", "/templatectrl", "/vmictrl", "/migrationctrl", "/domainctrl", "/nodectrl", "refdaemon", "internal/", "examples/"},
	"k8s.io/client-go":                          {"/expectationsctrl", "/templatectrl", "/vmictrl", "/migrationctrl", "/domainctrl", "/nodectrl", "refdaemon", "internal/", "examples/"},
	"google.golang.org/grpc":                    {"domain/launcher", "domain/deviceplugin", "refdaemon", "internal/"},
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

func layerOf(name string) (float64, bool) {
	if l, found := layers[name]; found {
		return l, true
	}
	for prefix, l := range layers {
		if p, isPrefix := strings.CutSuffix(prefix, "/..."); isPrefix && (name == p || strings.HasPrefix(name, p+"/")) {
			return l, true
		}
	}
	return 0, false
}

func has(importPath, prefix string) bool {
	return importPath == prefix || strings.HasPrefix(importPath, prefix+"/")
}

func TestEveryPackageHasALayerAndAStandardName(t *testing.T) {
	for _, p := range list(t, module+"/...") {
		if _, known := layerOf(p.name()); !known {
			t.Errorf("package %s is in no layer", p.name())
		}
		if slices.Contains([]string{"util", "utils", "common", "types", "helpers"}, path.Base(p.ImportPath)) {
			t.Errorf("package %s has a name that says nothing", p.name())
		}
	}
}

func TestArrowsPointDown(t *testing.T) {
	for _, p := range list(t, module+"/...") {
		mine, _ := layerOf(p.name())
		for _, imp := range p.Imports {
			if !has(imp, module) {
				continue
			}
			other, _ := layerOf(pkg{ImportPath: imp}.name())
			if other > mine || other == mine && mine < 4 && imp != p.ImportPath {
				t.Errorf("%s (layer %v) imports %s (layer %v)", p.name(), mine, pkg{ImportPath: imp}.name(), other)
			}
		}
	}
}

func TestLowerLayersImportOnlyWhatTheyMay(t *testing.T) {
	standard := map[string]bool{}
	for _, p := range list(t, "std") {
		standard[p.ImportPath] = true
	}
	for _, p := range list(t, module+"/...") {
		mine, _ := layerOf(p.name())
		allowed, limited := external[mine]
		if !limited {
			continue
		}
		for _, imp := range p.Imports {
			if standard[imp] || has(imp, module) || imp == "C" {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool { return has(imp, a) }) {
				t.Errorf("%s (layer %v) imports %s", p.name(), mine, imp)
			}
			if has(imp, "libvirt.org/go/libvirtxml") && p.name() != "domain" {
				t.Errorf("%s imports %s; only domain may", p.name(), imp)
			}
		}
	}
}

func TestAdmissionKnowsNothingOfWhatComesAfterIt(t *testing.T) {
	for _, p := range list(t, module+"/vmi/admit") {
		for _, imp := range p.Deps {
			if has(imp, module) && imp != module+"/internal/vmirules" {
				t.Errorf("%s depends on %s", p.name(), imp)
			}
		}
	}
}

func TestHeavyImportsStayWhereTheyBelong(t *testing.T) {
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
