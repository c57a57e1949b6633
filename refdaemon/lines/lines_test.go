// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

// followed is a file that is being followed.
type followed struct {
	t     *testing.T
	path  string
	lines chan string
	end   func() error
}

func follow(t *testing.T, longest int) *followed {
	t.Helper()
	f := &followed{t: t, path: filepath.Join(t.TempDir(), "log"), lines: make(chan string, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		follower := Follower{Path: f.path, Longest: longest, Pause: time.Millisecond, Line: func(l []byte) { f.lines <- string(l) }}
		over <- follower.Run(ctx)
		close(f.lines)
	}()
	f.end = func() error {
		cancel()
		return <-over
	}
	return f
}

// write appends to the file, as QEMU does.
func (f *followed) write(text string) {
	f.t.Helper()
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// want receives lines.
func (f *followed) want(lines ...string) {
	f.t.Helper()
	for _, want := range lines {
		if got := <-f.lines; got != want {
			f.t.Fatalf("%q, want %q", got, want)
		}
	}
}

func TestFollower_Growing(t *testing.T) {
	f := follow(t, 0)
	f.write("a\r\n\nb")
	f.want("a", "")
	f.write("b\nrest")
	f.want("bb")
	if err := f.end(); err != nil {
		t.Error(err)
	}
	f.want("rest")
}

func TestFollower_Truncated(t *testing.T) {
	f := follow(t, 0)
	f.write("a long first line\nunfinished")
	f.want("a long first line")
	if err := os.Truncate(f.path, 0); err != nil {
		t.Fatal(err)
	}
	f.want("unfinished")
	f.write("b\n")
	f.want("b")
	if err := f.end(); err != nil {
		t.Error(err)
	}
}

func TestFollower_Replaced(t *testing.T) {
	f := follow(t, 0)
	f.write("a\n")
	f.want("a")
	old, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if _, err := old.WriteString("the last one"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path, f.path+".0"); err != nil {
		t.Fatal(err)
	}
	f.want("the last one")
	f.write("b\n")
	f.want("b")
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	f.write("c\n")
	f.want("c")
	if err := f.end(); err != nil {
		t.Error(err)
	}
}

func TestFollower_LongLines(t *testing.T) {
	f := follow(t, 4)
	f.write("abcd\nabcde\nabcdefgh\nab\n")
	f.want("abcd", "abcd", "e", "abcd", "efgh", "ab")
	f.write(strings.Repeat("x", 4))
	f.write("\n")
	f.want("xxxx")
	if err := f.end(); err != nil {
		t.Error(err)
	}
}

func TestFollower_BeforeFile(t *testing.T) {
	f := follow(t, 0)
	if err := f.end(); err != nil {
		t.Errorf("a file that never comes is an error: %v", err)
	}
	if got, more := <-f.lines; more {
		t.Errorf("there is a line %q", got)
	}
}

func TestFollower_NotRegular(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a link":   func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		f := Follower{Path: path, Line: func(l []byte) { t.Errorf("%s: line %q", name, l) }}
		if err := f.Run(t.Context()); err == nil {
			t.Errorf("%s is followed", name)
		}
	}
}

// TestTrim_NothingLost: while a file is written and followed it is trimmed again and again: it stays small, and every line
// arrives once.
func TestTrim_NothingLost(t *testing.T) {
	f := follow(t, 0)
	const most, keep, rounds = 256 << 10, 64 << 10, 100
	trimmed := 0
	for i := range rounds {
		line := strings.Repeat(string(rune('a'+i%26)), 10000)
		f.write(line + "\n")
		f.want(line)
		did, err := Trim(f.path, most, keep)
		if err != nil {
			t.Fatal(err)
		}
		if did {
			trimmed++
		}
		var st unix.Stat_t
		if err := unix.Stat(f.path, &st); err != nil || st.Blocks*512 > most+2*chunk {
			t.Fatalf("%d bytes are taken, %v", st.Blocks*512, err)
		}
	}
	if trimmed == 0 || trimmed == rounds {
		t.Errorf("it was trimmed %d times", trimmed)
	}
	if err := f.end(); err != nil {
		t.Error(err)
	}
	// Whoever comes later begins with what is left.
	var got []string
	late := Follower{Path: f.path, Line: func(l []byte) { got = append(got, string(l)) }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := late.Run(ctx); err != nil || len(got) == 0 || len(got) == rounds || slices.ContainsFunc(got, func(l string) bool { return strings.Contains(l, "\x00") }) {
		t.Errorf("%d lines of %d are left, %v", len(got), rounds, err)
	}
}

func TestTrim_Errors(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if did, err := Trim(link, 0, 0); did || err == nil {
		t.Errorf("a link is trimmed: %v", err)
	}
	if did, err := Trim(filepath.Join(dir, "missing"), 0, 0); did || err != nil {
		t.Errorf("a file that is not there: %v, %v", did, err)
	}
}

func TestSplit_Reader(t *testing.T) {
	var got []string
	if err := Split(strings.NewReader("a\nbcdefg\n\nrest"), 4, func(l []byte) { got = append(got, string(l)) }); err != nil {
		t.Error(err)
	}
	if want := []string{"a", "bcde", "fg", "", "rest"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	got = nil
	broken := errors.New("broken")
	r := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))
	if err := Split(r, 0, func(l []byte) { got = append(got, string(l)) }); !errors.Is(err, broken) || !slices.Equal(got, []string{"half"}) {
		t.Errorf("%q, %v", got, err)
	}
}
