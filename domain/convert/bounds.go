// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/domain"
)

// Limits for the XML of a domain from an untrusted source. A domain with a thousand disks stays far
// below them, and parsing XML within them takes some tens of megabytes.
const (
	maxXMLBytes    = 4 << 20
	maxXMLElements = 1 << 16 // attributes count as well
	maxXMLDepth    = 64
)

// CheckXML returns an error that wraps [domain.ErrInvalid] if the XML of a domain, or of a part of
// one, is too large to parse: a short text can describe a very large value. It does not check the
// syntax.
func CheckXML(text string) error {
	if len(text) > maxXMLBytes {
		return fmt.Errorf("XML of %d bytes exceeds the limit of %d bytes: %w", len(text), maxXMLBytes, domain.ErrInvalid)
	}
	dec := xml.NewDecoder(strings.NewReader(text))
	for count, depth := 0, 0; ; {
		tok, err := dec.RawToken()
		if err != nil {
			return nil //nolint:nilerr // end of input, or a syntax error, which the parser reports as well
		}
		switch t := tok.(type) {
		case xml.StartElement:
			count += 1 + len(t.Attr)
			depth++
		case xml.EndElement:
			depth--
		}
		if count > maxXMLElements || depth > maxXMLDepth {
			return fmt.Errorf("XML exceeds the limit of %d elements and attributes, or the nesting depth of %d: %w", maxXMLElements, maxXMLDepth, domain.ErrInvalid)
		}
	}
}
