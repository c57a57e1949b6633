// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/virtloom/virtloom/refdaemon/cachestate"
)

// unasked is printed when the controller was not asked; unequal when its settings may differ.
const (
	unasked = "not asked: only the controller knows whether its cache lags or still misses its own writes; --controller asks it, " +
		"and its metrics virtloom_expectations_outstanding and virtloom_expectations_settle_duration_seconds show it for all VMIs"
	unequal = "its settings may differ from the ones given here, which decided the next writes above: pass its file to --config, or compare with --controller"
)

// Controller is the controller's view of an object.
type Controller struct {
	// Asked is true if it was asked, Error the reason why it did not answer; empty if it did.
	Asked bool   `json:"asked"`
	Error string `json:"error,omitempty"`
	// Leads is true if it is the leader.
	Leads bool `json:"leads,omitempty"`
	// Pending are its own writes that its cache has not observed yet.
	Pending []cachestate.Write `json:"unseen,omitempty"`
	// Settings are the settings of the controller that differ from those of this diagnosis.
	Settings []Setting `json:"settings,omitempty"`
	// Lags are the objects that its cache holds in an older version, or not at all.
	Lags []Lag `json:"lags,omitempty"`
	// At is the time of its answer; nil if it did not answer.
	At *time.Time `json:"at,omitempty"`
}

// Setting is a setting of the controller that differs from that of the diagnosis.
type Setting struct {
	// Flag is its flag, without dashes.
	Flag string `json:"flag"`
	// Controller is the value at the controller, Here that of the diagnosis.
	Controller string `json:"controller"`
	Here       string `json:"here"`
}

// Lag is an object of which the controller's cache holds an older version.
type Lag struct {
	// Object is kind, namespace and name.
	Object string `json:"object"`
	// Cached is the version in the cache, empty if absent there; Stored that of the API server.
	Cached string `json:"cached,omitempty"`
	Stored string `json:"stored"`
}

// sees asks the controller, and compares its answer.
func (c *Cluster) sees(ctx context.Context, q cachestate.Question) Controller {
	if c.Ask == nil {
		return Controller{}
	}
	s, err := c.Ask(ctx, q)
	if err != nil {
		return Controller{Asked: true, Error: err.Error()}
	}
	out := Controller{Asked: true, Leads: s.Leads, Pending: s.Pending, At: &s.At, Settings: c.differ(s.Settings)}
	cached := map[string]string{}
	for _, o := range s.Objects {
		cached[o.Kind+" "+o.Name] = o.ResourceVersion
	}
	stored, err := cachestate.Versions(ctx, c.Reader, q)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	for _, o := range stored {
		// It was asked after the API server, so its version may be newer.
		if have := cached[o.Kind+" "+o.Name]; behind(have, o.ResourceVersion) {
			out.Lags = append(out.Lags, Lag{Object: strings.TrimSpace(o.Kind + " " + o.Name), Cached: have, Stored: o.ResourceVersion})
		}
	}
	return out
}

// differ compares the settings of the controller with those of the diagnosis, ordered by flag. Settings unknown to one of
// them, due to another version, are left out.
func (c *Cluster) differ(theirs map[string]string) []Setting {
	var out []Setting
	for _, flag := range slices.Sorted(maps.Keys(theirs)) {
		if here, known := c.Settings[flag]; known && here != theirs[flag] {
			out = append(out, Setting{Flag: flag, Controller: theirs[flag], Here: here})
		}
	}
	return out
}

// behind reports whether a cached version is older than the stored one.
func behind(cached, stored string) bool {
	if cached == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(cached, stored)
	return err == nil && order < 0
}

// text writes the controller's view. next is true if the writes printed above depend on settings.
func (c Controller) text(b *strings.Builder, next bool) {
	switch {
	case !c.Asked:
		writeLine(b, "Controller", "%s", unasked)
		if next {
			writeLine(b, "", "%s", unequal)
		}
		return
	case c.Error != "":
		writeLine(b, "Controller", "did not report its view: %s", c.Error)
		writeLine(b, "", "remedy: check that it runs, and that the address is that of its metrics")
		return
	case !c.Leads:
		writeLine(b, "Controller", "the replica that answered is not the leader; ask the leader")
	}
	for _, w := range c.Pending {
		writeLine(b, "Controller", "waiting for its cache to observe: %s, since %s", w.Text, w.Since.UTC().Format(time.RFC3339))
		writeLine(b, "", "until then it creates and deletes nothing for the object; after 30 seconds it reads live instead")
	}
	for _, s := range c.Settings {
		writeLine(b, "Controller", "runs with --%s=%q, this diagnosis with %q: its decisions differ from the above", s.Flag, s.Controller, s.Here)
		writeLine(b, "", "remedy: pass the controller's file to --config, or its value to --%s", s.Flag)
	}
	for _, l := range c.Lags {
		have := "does not have it"
		if l.Cached != "" {
			have = "has version " + l.Cached
		}
		writeLine(b, "Controller", "its cache lags: of %s it %s, stored is version %s", l.Object, have, l.Stored)
		writeLine(b, "", "remedy: none, unless it persists: then check its log for failing watches, and the load of the API server")
	}
	if c.Leads && len(c.Pending)+len(c.Lags) == 0 {
		writeLine(b, "Controller", "leads; its cache is up to date and has observed all its writes")
	}
}
