// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/template/render"
)

// document is one document of a file, as JSON.
type document struct {
	source Source
	json   json.RawMessage
}

// documents splits a file. Documents are separated by lines that begin with three dashes; JSON values may also follow each
// other directly.
func documents(file string, content []byte) ([]document, error) {
	var (
		all  []document
		errs []error
	)
	for _, part := range splitDocuments(content) {
		if blank(part.text) {
			continue
		}
		values, err := part.values()
		for _, v := range values {
			v.source.File, v.source.Document = file, len(all)+1
			all = append(all, v)
		}
		if err != nil {
			at := Source{File: file, Document: len(all) + 1, Line: part.line}
			errs = append(errs, &Error{
				Source: at, Reason: "must be YAML or JSON: " + oneLine(err), Err: render.ErrInvalid,
				Remedy: "correct the text at this line",
			})
			all = append(all, document{source: at}) // it counts, but there is nothing to decode
		}
	}
	return all, errors.Join(errs...)
}

// part is the text between two separators.
type part struct {
	line int // the number of its first line with content
	text string
}

func splitDocuments(content []byte) []part {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	var (
		parts []part
		text  strings.Builder
	)
	begin, at := 1, 0
	end := func() {
		parts = append(parts, part{begin, text.String()}.trimmed())
		text.Reset()
	}
	for line := range strings.Lines(string(content)) {
		at++
		mark, rest := separator(line)
		switch {
		case mark == "...":
			end()
			begin = at + 1
		case mark == "---":
			end()
			begin = at
			text.WriteString("   " + rest) // a document may begin after the dashes
		default:
			text.WriteString(line)
		}
	}
	end()
	return parts
}

// separator returns the separator at the beginning of a line, and the text after it.
func separator(line string) (mark, rest string) {
	for _, mark := range []string{"---", "..."} {
		if rest, found := strings.CutPrefix(line, mark); found && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			return mark, rest
		}
	}
	return "", line
}

// trimmed drops leading lines without content, so that the part's line is that of its object.
func (p part) trimmed() part {
	for {
		line, rest, more := strings.Cut(p.text, "\n")
		if !more || !blank(line) {
			return p
		}
		p.line, p.text = p.line+1, rest
	}
}

func blank(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// values converts a part to JSON: one value of YAML, or any number of values of JSON.
func (p part) values() ([]document, error) {
	if strings.HasPrefix(strings.TrimSpace(p.text), "{") {
		if values, err := p.jsonValues(); err == nil || len(values) > 0 {
			return values, err
		}
	}
	// Empty lines before the text make the line numbers of YAML's errors those of the file.
	converted, err := yaml.YAMLToJSONStrict([]byte(strings.Repeat("\n", p.line-1) + p.text))
	if err != nil {
		return nil, err
	}
	return []document{{source: Source{Line: p.line}, json: converted}}, nil
}

func (p part) jsonValues() (values []document, err error) {
	dec := json.NewDecoder(strings.NewReader(p.text))
	for {
		behind := p.text[dec.InputOffset():]
		blanks := len(behind) - len(strings.TrimLeft(behind, " \t\r\n"))
		line := p.line + strings.Count(p.text[:int(dec.InputOffset())+blanks], "\n")
		var value json.RawMessage
		switch err := dec.Decode(&value); {
		case errors.Is(err, io.EOF):
			return values, nil
		case err != nil:
			return values, err
		}
		values = append(values, document{source: Source{Line: line}, json: value})
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
