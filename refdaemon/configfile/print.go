// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Print writes a configuration as a file that [Read] reads back unchanged, with a
// comment for each field: its meaning, its flag, and when a change takes effect.
func Print(out io.Writer, c Configuration) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	root.Content = append(root.Content, word("apiVersion"), word(APIVersion), word("kind"), word(c.kind()))
	sections := map[string]*yaml.Node{"": root}
	for _, o := range c.Options() {
		above, name, _ := cutLast(o.Field)
		into := sectionOf(sections, above)
		key, v := word(name), &yaml.Node{}
		if err := v.Encode(o.value.show()); err != nil {
			return fmt.Errorf("print %s: %w", o.Field, err)
		}
		key.HeadComment = comment(o)
		into.Content = append(into.Content, key, v)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return fmt.Errorf("print %s: %w", c.kind(), err)
	}
	_, err := out.Write(b.Bytes())
	return err
}

func word(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tagString, Value: s}
}

// sectionOf returns the object at a path, and creates it if absent.
func sectionOf(sections map[string]*yaml.Node, path string) *yaml.Node {
	if s := sections[path]; s != nil {
		return s
	}
	above, name, _ := cutLast(path)
	s := &yaml.Node{Kind: yaml.MappingNode}
	into := sectionOf(sections, above)
	into.Content = append(into.Content, word(name), s)
	sections[path] = s
	return s
}

// commentWidth is the line width of comments.
const commentWidth = 96

func comment(o Option) string {
	when := "at the next start"
	if o.Live {
		when = "at once"
	}
	text := fmt.Sprintf("%s. Flag --%s; a change takes effect %s.", strings.ReplaceAll(o.Usage, "`", ""), o.Flag, when)
	var b strings.Builder
	b.WriteString("#")
	width := 1
	for w := range strings.FieldsSeq(text) {
		if width+1+len(w) > commentWidth {
			b.WriteString("\n#")
			width = 1
		}
		b.WriteString(" " + w)
		width += 1 + len(w)
	}
	return b.String()
}
