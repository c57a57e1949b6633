// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	// A character is as wide and a line as high as this, in pixels, with that much around and above all.
	charWidth, lineHeight = 7.25, 17
	margin, titleHeight   = 16, 30
)

// style is that of a terminal. Fonts are those of the reader.
const style = `
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d0d4dc; white-space: pre; }
  .heading { fill: #ffffff; font-weight: bold; } .time { fill: #7a8290; } .ok { fill: #7fd18b; } .bad { fill: #ff7b72; }
  .bar { fill: #79c0ff; } .object { fill: #d2a8ff; } .title { fill: #8b949e; }
`

// part is a piece of a line in one colour.
type part struct{ class, text string }

// entry is a line of the timeline: when, what object, and what happened.
var entry = regexp.MustCompile(`^( *\d+\.\d\ds)(  \S+ *)(.*)$`)

// colour cuts a line into its pieces.
func colour(line string) []part {
	switch m := entry.FindStringSubmatch(line); {
	case strings.HasPrefix(line, "== "):
		return []part{{"heading", line}}
	case strings.HasPrefix(line, "  ok  "):
		return []part{{"ok", line[:6]}, {"", line[6:]}}
	case strings.HasPrefix(line, "  FAILED"):
		return []part{{"bad", line}}
	case m == nil:
		return []part{{"", line}}
	case bar.MatchString(m[3]):
		return []part{{"time", m[1]}, {"object", m[2]}, {"bar", m[3]}}
	case strings.HasPrefix(m[3], "checked"), strings.HasPrefix(m[3], "measured"):
		return []part{{"time", m[1]}, {"object", m[2]}, {"ok", m[3]}}
	default:
		return []part{{"time", m[1]}, {"object", m[2]}, {"", m[3]}}
	}
}

// draw makes a picture of a terminal with these lines. Equal lines make equal bytes.
func draw(lines []string) []byte {
	columns := 60
	for _, l := range lines {
		columns = max(columns, utf8.RuneCountInString(l))
	}
	w, h := int(float64(columns)*charWidth)+2*margin, len(lines)*lineHeight+2*margin+titleHeight
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">
<!-- SPDX-License-Identifier: Apache-2.0. Made by: go run ./internal/screenshots -->
<title>make demo</title>
<style>%s</style>
<rect width="100%%" height="100%%" rx="8" fill="#161b22"/>
<circle cx="18" cy="16" r="5" fill="#ff5f57"/><circle cx="36" cy="16" r="5" fill="#febc2e"/><circle cx="54" cy="16" r="5" fill="#28c840"/>
<text x="74" y="20"><tspan class="title">make demo</tspan></text>
`, w, h, w, h, style)
	for i, l := range lines {
		fmt.Fprintf(&b, `<text x="%d" y="%d" class="line" xml:space="preserve">`, margin, titleHeight+margin+i*lineHeight+lineHeight/2)
		for _, p := range colour(l) {
			b.WriteString("<tspan")
			if p.class != "" {
				fmt.Fprintf(&b, ` class="%s"`, p.class)
			}
			b.WriteString(">")
			_ = xml.EscapeText(&b, []byte(p.text)) // a buffer takes everything
			b.WriteString("</tspan>")
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// read returns the lines that a picture shows.
func read(picture []byte) ([]string, error) {
	var svg struct {
		Text []struct {
			Class string   `xml:"class,attr"`
			Spans []string `xml:"tspan"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal(picture, &svg); err != nil {
		return nil, fmt.Errorf("read the picture: %w", err)
	}
	var lines []string
	for _, t := range svg.Text {
		if t.Class == "line" {
			lines = append(lines, strings.Join(t.Spans, ""))
		}
	}
	return lines, nil
}
