// SPDX-License-Identifier: Apache-2.0

// Package lines follows growing text files, such as the log of a guest's console, and bounds the disk space that they take.
package lines

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// defaultPause is the default of [Follower].Pause.
	defaultPause = 200 * time.Millisecond
	// chunk is how much is read at once.
	chunk = 64 << 10
)

// Follower reads the lines of a file as they are written, across truncation and replacement of the file. Everything that is
// still in the file when it is truncated has to have been read, or is lost.
type Follower struct {
	// Path is the file's path. The file need not exist yet. Symbolic links and what is no regular file are not followed.
	Path string
	// Line receives each line, without its end.
	Line func([]byte)
	// Longest is the maximum length of a line in bytes; longer ones are passed on in parts. Default: 16 KiB.
	Longest int
	// Pause is the pause between two looks at the file. Default: 200 ms.
	Pause time.Duration

	file   *os.File
	offset int64
	split  splitter
	buffer []byte
}

// Run follows the file until ctx ends; then it reads to the present end and passes on an unfinished last line.
func (f *Follower) Run(ctx context.Context) error {
	f.split = splitter{longest: f.Longest, line: f.Line}
	if f.Pause <= 0 {
		f.Pause = defaultPause
	}
	f.buffer = make([]byte, chunk)
	tick := time.NewTicker(f.Pause)
	defer tick.Stop()
	defer func() { _ = f.file.Close() }()
	for {
		ended := ctx.Err() != nil
		err := f.look()
		if ended || err != nil {
			f.split.flush()
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// look reads what is new in the file and, if another has taken its place, in that one.
func (f *Follower) look() error {
	if f.file != nil {
		info, err := os.Lstat(f.Path)
		own, statErr := f.file.Stat()
		if statErr != nil {
			return statErr
		}
		replaced := err != nil || !os.SameFile(info, own)
		// What was written before it was replaced is there by now.
		if err := f.read(); err != nil || !replaced {
			return err
		}
		f.split.flush()
		if err := f.file.Close(); err != nil {
			return err
		}
		f.file = nil
	}
	file, err := openLogFile(f.Path, os.O_RDONLY)
	if file == nil {
		return err
	}
	f.file, f.offset = file, 0
	return f.read()
}

// openLogFile opens a regular file; nil if there is none yet.
func openLogFile(path string, flags int) (*os.File, error) {
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: errors.New("it is not a regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// read reads to the end of the open file.
func (f *Follower) read() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < f.offset { // it was truncated
		f.split.flush()
		f.offset = 0
	}
	for {
		f.skip()
		n, err := f.file.ReadAt(f.buffer, f.offset)
		f.offset += int64(n)
		f.split.add(f.buffer[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// skip goes to the next data if the file has a hole here, which [Trim] has made. File systems that know of no holes have none.
func (f *Follower) skip() {
	if next, err := unix.Seek(int(f.file.Fd()), f.offset, unix.SEEK_DATA); err == nil {
		f.offset = max(f.offset, next)
	}
}

// Trim releases the disk space of all but about the last keep bytes of a file that takes more than most bytes, and reports
// whether it did. Whoever writes the file goes on at its end, whoever follows it goes on where it is: offsets stay the same, and
// the beginning becomes a hole. Where the file system cannot make holes the file is truncated, and what was written since
// a reader's last look is lost to it.
func Trim(path string, most, keep int64) (bool, error) {
	file, err := openLogFile(path, os.O_WRONLY)
	if file == nil {
		return false, err
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	const sector = 512 // the unit of Blocks
	if st.Blocks*sector <= most {
		return false, nil
	}
	end := (st.Size - keep) / chunk * chunk
	if end <= 0 {
		return false, nil
	}
	err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, end)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		err = file.Truncate(0)
	}
	return err == nil, err
}
