// SPDX-License-Identifier: Apache-2.0

package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/virtloom/virtloom/internal/durable"
)

func TestWriteJSON_Atomic(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "file.json")
	for _, v := range []map[string]string{{"long": "a first content"}, {"b": "c"}} {
		if err := durable.WriteJSON(path, v); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != `{"b":"c"}` {
		t.Errorf("the file has %s, %v", got, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v, %v", st.Mode(), err)
	}
	alone(t, path)
}

func TestWriteJSON_Failure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.json")
	if err := durable.WriteJSON(path, func() {}); err == nil {
		t.Error("a function was written")
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteJSON(path, "text"); err == nil {
		t.Error("a folder was replaced")
	}
	alone(t, path)
}

func TestRemove_Idempotent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.json")
	if err := durable.WriteJSON(path, 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := durable.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// alone checks that nothing else is in the folder.
func alone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}
