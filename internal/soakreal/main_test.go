// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	o, output, err := parse([]string{"-duration", "40m", "-o", "json"}, io.Discard)
	if err != nil || o.Duration != 40*time.Minute || o.Window != 2*time.Minute || output != "json" {
		t.Errorf("%+v, %s, %v", o, output, err)
	}
	for name, tt := range map[string]struct{ args, want string }{
		"a word too much":  {"1h", "unexpected argument"},
		"another format":   {"-o yaml", "neither text nor json"},
		"no time":          {"-duration 0s", "above 0"},
		"no pause":         {"-pause -1s", "above 0"},
		"a single node":    {"-nodes 1", "two nodes"},
		"no guests":        {"-guests 0", "two nodes and one VMI"},
		"an unknown flag":  {"-nonsense", "not defined"},
		"no time at all":   {"-duration soon", "invalid value"},
		"a window of zero": {"-window -1s", "above 0"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := parse(strings.Fields(tt.args), io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want it to say %q", err, tt.want)
			}
		})
	}
}
