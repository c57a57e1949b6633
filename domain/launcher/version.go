// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"slices"
	"strings"

	"github.com/virtloom/virtloom/domain"
)

// versions are the supported versions of the command channel.
var versions = []uint32{1}

// agree returns the highest common version.
func agree(ours, theirs []uint32) (uint32, error) {
	best := uint32(0)
	for _, v := range ours {
		if slices.Contains(theirs, v) {
			best = max(best, v)
		}
	}
	if best == 0 {
		return 0, fmt.Errorf("no common version of the command channel: the launcher supports %s, the node agent %s; update the older one: %w",
			spoken(ours), spoken(theirs), domain.ErrUnsupported)
	}
	return best, nil
}

func spoken(all []uint32) string {
	if len(all) == 0 {
		return "none"
	}
	text := make([]string, 0, len(all))
	for _, v := range all {
		text = append(text, fmt.Sprint(v))
	}
	return strings.Join(text, ", ")
}
