// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// Bounds of the XML of a domain that somebody may have made up. A guest with a thousand
// disks stays far below them, and what is read within them takes some tens of megabytes.
const (
	maxXMLBytes    = 4 << 20
	maxXMLElements = 1 << 16 // attributes count as well
	maxXMLDepth    = 64
)

// CheckXML makes sure that the XML of a domain, or of a part of one, is small enough to be
// read into memory: a small text can describe a very large value. The error wraps
// [ErrInvalid].
func CheckXML(text string) error {
	if len(text) > maxXMLBytes {
		return fmt.Errorf("the XML of %d bytes is larger than %d: %w", len(text), maxXMLBytes, ErrInvalid)
	}
	dec := xml.NewDecoder(strings.NewReader(text))
	for count, depth := 0, 0; ; {
		tok, err := dec.RawToken()
		if err != nil {
			return nil //nolint:nilerr // the end, or no XML, which whoever reads it finds there as well
		}
		switch t := tok.(type) {
		case xml.StartElement:
			count += 1 + len(t.Attr)
			depth++
		case xml.EndElement:
			depth--
		}
		if count > maxXMLElements || depth > maxXMLDepth {
			return fmt.Errorf("the XML has more than %d elements and attributes, or is nested deeper than %d: %w", maxXMLElements, maxXMLDepth, ErrInvalid)
		}
	}
}
