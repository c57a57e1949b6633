// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bytes"
	"errors"
	"io"
)

// defaultLongest is the maximum length of a line unless it is set.
const defaultLongest = 16 << 10

// Split reads lines until the end of r, which is no error, and calls line with each, without its end. Lines longer than longest
// bytes, 16 KiB if it is 0, are passed on in parts.
func Split(r io.Reader, longest int, line func([]byte)) error {
	s := splitter{longest: longest, line: line}
	buffer := make([]byte, chunk)
	for {
		n, err := r.Read(buffer)
		s.add(buffer[:n])
		if err == nil {
			continue
		}
		s.flush()
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// splitter makes lines of what is added.
type splitter struct {
	longest int
	line    func([]byte)
	rest    []byte // a line without its end so far
}

// add passes on the lines that end in data.
func (s *splitter) add(data []byte) {
	if s.longest <= 0 {
		s.longest = defaultLongest
	}
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end >= 0 && len(s.rest)+end <= s.longest {
			s.rest = append(s.rest, data[:end]...)
			data = data[end+1:]
			s.pass()
			continue
		}
		n := min(s.longest-len(s.rest), len(data))
		s.rest = append(s.rest, data[:n]...)
		data = data[n:]
		// A line of exactly the greatest length may still end.
		if len(s.rest) == s.longest && len(data) > 0 {
			s.pass()
		}
	}
}

// flush passes on an unfinished line.
func (s *splitter) flush() {
	if len(s.rest) > 0 {
		s.pass()
	}
}

func (s *splitter) pass() {
	s.line(bytes.TrimSuffix(s.rest, []byte("\r")))
	s.rest = s.rest[:0]
}
