// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"io"
	"os"
	"os/exec"
	"strings"
)

const module = "github.com/virtloom/virtloom"

// Public tells whether what a package exports is promised to anybody; docs/versioning.md says which are not.
func Public(path string) bool {
	name, ours := strings.CutPrefix(path, module+"/")
	if !ours || name == "domain/launcher/launcherpb" {
		return false
	}
	for _, part := range strings.Split(name, "/") {
		if part == "internal" {
			return false
		}
	}
	first, _, _ := strings.Cut(name, "/")
	return first != "refdaemon" && first != "examples" && first != "hack"
}

// Load compiles the module in a folder, with libvirt, and tells what each public package exports, by its path in the module.
func Load(ctx context.Context, dir string) (map[string][]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-export", "-tags", "libvirt_dlopen", "-json=ImportPath,Export", module+"/...")
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	compiled := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		compiled[p.ImportPath] = p.Export
	}
	return read(compiled)
}

// read reads what was compiled, by import path.
func read(compiled map[string]string) (map[string][]string, error) {
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(compiled[path])
	})
	surfaces := map[string][]string{}
	for path := range compiled {
		if !Public(path) {
			continue
		}
		pkg, err := from.Import(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		surfaces[strings.TrimPrefix(path, module+"/")] = Lines(pkg)
	}
	return surfaces, nil
}
