// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// stage is an image that a Containerfile makes.
type stage struct {
	name   string
	folder string // what is copied, relative to the build's folder
	config v1.Config
}

// parse reads a Containerfile in which each image begins with nothing and is the content of one folder. It does not know more
// of the language than that, and says so.
func parse(text string) ([]stage, error) {
	var stages []stage
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var err error
		if stages, err = read(stages, line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	if len(stages) == 0 {
		return nil, errors.New("no image")
	}
	for _, s := range stages {
		if s.folder == "" || len(s.config.Entrypoint) == 0 || s.config.User == "" {
			return nil, fmt.Errorf("image %s lacks one of COPY, USER and ENTRYPOINT", s.name)
		}
		if s.config.Labels[titleLabel] == "" {
			return nil, fmt.Errorf("image %s lacks the label %s", s.name, titleLabel)
		}
	}
	return stages, nil
}

// read takes in a line: another image, or an instruction for the last one.
func read(stages []stage, line string) ([]stage, error) {
	word, rest, _ := strings.Cut(line, " ")
	if word == "FROM" {
		name, scratch := strings.CutPrefix(rest, "scratch AS ")
		if !scratch || name == "" {
			return nil, errors.New("an image begins with: FROM scratch AS NAME")
		}
		return append(stages, stage{name: name}), nil
	}
	if len(stages) == 0 {
		return nil, errors.New("FROM comes first")
	}
	return stages, stages[len(stages)-1].instruct(word, rest)
}

func (s *stage) instruct(word, rest string) error {
	switch word {
	case "COPY":
		folder, whole := strings.CutSuffix(rest, "/ /")
		if !whole || s.folder != "" || strings.ContainsAny(folder, " ./") {
			return errors.New("an image is one folder: COPY FOLDER/ /")
		}
		s.folder = folder
	case "USER":
		s.config.User = rest
	case "ENV":
		if !strings.Contains(rest, "=") || strings.ContainsAny(rest, ` "'$`) {
			return errors.New("a variable is plain: ENV NAME=VALUE")
		}
		s.config.Env = append(s.config.Env, rest)
	case "LABEL":
		return s.label(rest)
	case "ENTRYPOINT":
		return words(rest, &s.config.Entrypoint)
	case "CMD":
		return words(rest, &s.config.Cmd)
	default:
		return fmt.Errorf("%s is not known here", word)
	}
	return nil
}

// label reads one label, NAME="TEXT".
func (s *stage) label(rest string) error {
	name, quoted, found := strings.Cut(rest, "=")
	text, err := strconv.Unquote(quoted)
	if !found || err != nil || name == "" || strings.ContainsAny(name, ` "'$`) || strings.Contains(text, "$") {
		return errors.New(`a label is one plain text: LABEL NAME="TEXT"`)
	}
	if s.config.Labels == nil {
		s.config.Labels = map[string]string{}
	}
	s.config.Labels[name] = text
	return nil
}

// words reads a command in the form that needs no shell.
func words(text string, to *[]string) error {
	if err := json.Unmarshal([]byte(text), to); err != nil {
		return fmt.Errorf("a command is a list of words in JSON: %w", err)
	}
	return nil
}
