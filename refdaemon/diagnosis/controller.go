// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/virtloom/virtloom/refdaemon/sight"
)

// unasked says, of what only a controller knows, where it is told; unequal what that means for the next writes.
const (
	unasked = "not asked: whether its cache lags, or a write of its own is not seen yet, it knows alone; --controller asks it, " +
		"and its metrics virtloom_expectations_outstanding and virtloom_expectations_settle_duration_seconds tell it for all guests"
	unequal = "its settings may differ from those given here, by which the next writes above were decided: give its file to --config, or let --controller compare"
)

// Controller is what a controller sees of an object.
type Controller struct {
	// Asked says that it was asked, Error why it did not answer; empty if it did.
	Asked bool   `json:"asked"`
	Error string `json:"error,omitempty"`
	// Leads says that it is the one that acts.
	Leads bool `json:"leads,omitempty"`
	// Unseen are its writes that its cache does not show yet.
	Unseen []sight.Write `json:"unseen,omitempty"`
	// Settings are those by which the controller decides otherwise than this diagnosis.
	Settings []Setting `json:"settings,omitempty"`
	// Lags are the objects that it sees as they were before, or not at all.
	Lags []Lag `json:"lags,omitempty"`
	// At is when it answered; nil if it did not.
	At *time.Time `json:"at,omitempty"`
}

// Setting is a value by which the controller decides and that differs from the one of the diagnosis.
type Setting struct {
	// Flag is its flag, without dashes.
	Flag string `json:"flag"`
	// Controller is the value at the controller, Here that of the diagnosis.
	Controller string `json:"controller"`
	Here       string `json:"here"`
}

// Lag is an object that the cache of a controller shows as it was.
type Lag struct {
	// Object is kind, namespace and name.
	Object string `json:"object"`
	// Cached is the version in the cache, empty if it has none of the object; Stored that at the API server.
	Cached string `json:"cached,omitempty"`
	Stored string `json:"stored"`
}

// sees asks the controller, and compares.
func (c *Cluster) sees(ctx context.Context, q sight.Question) Controller {
	if c.Ask == nil {
		return Controller{}
	}
	s, err := c.Ask(ctx, q)
	if err != nil {
		return Controller{Asked: true, Error: err.Error()}
	}
	out := Controller{Asked: true, Leads: s.Leads, Unseen: s.Unseen, At: &s.At, Settings: c.differ(s.Settings)}
	cached := map[string]string{}
	for _, o := range s.Objects {
		cached[o.Kind+" "+o.Name] = o.ResourceVersion
	}
	stored, err := sight.Versions(ctx, c.Reader, q)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	for _, o := range stored {
		// It was asked after the API server, so that its own may be newer.
		if have := cached[o.Kind+" "+o.Name]; behind(have, o.ResourceVersion) {
			out.Lags = append(out.Lags, Lag{Object: strings.TrimSpace(o.Kind + " " + o.Name), Cached: have, Stored: o.ResourceVersion})
		}
	}
	return out
}

// differ compares the settings of the controller with those of the diagnosis, ordered by flag. What one of them does not
// know, being of another version, is left out.
func (c *Cluster) differ(theirs map[string]string) []Setting {
	var out []Setting
	for _, flag := range slices.Sorted(maps.Keys(theirs)) {
		if here, known := c.Settings[flag]; known && here != theirs[flag] {
			out = append(out, Setting{Flag: flag, Controller: theirs[flag], Here: here})
		}
	}
	return out
}

// behind tells whether a cached version is older than the stored one.
func behind(cached, stored string) bool {
	if cached == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(cached, stored)
	return err == nil && order < 0
}

// text writes what the controller sees. With next there are writes above that depend on settings.
func (c Controller) text(b *strings.Builder, next bool) {
	switch {
	case !c.Asked:
		line(b, "Controller", "%s", unasked)
		if next {
			line(b, "", "%s", unequal)
		}
		return
	case c.Error != "":
		line(b, "Controller", "does not tell what it sees: %s", c.Error)
		line(b, "", "remedy: look whether it runs, and whether the address is that of its metrics")
		return
	case !c.Leads:
		line(b, "Controller", "the one that was asked does not lead: another decides")
	}
	for _, w := range c.Unseen {
		line(b, "Controller", "expects to see: %s, since %s", w.Text, w.Since.UTC().Format(time.RFC3339))
		line(b, "", "until then it creates and deletes nothing for the guest; it reads live what it has not seen after half a minute")
	}
	for _, s := range c.Settings {
		line(b, "Controller", "runs with --%s=%q, this diagnosis was made with %q: it decides otherwise than is said above", s.Flag, s.Controller, s.Here)
		line(b, "", "remedy: give the controller's file to --config, or its value to --%s", s.Flag)
	}
	for _, l := range c.Lags {
		have := "does not have it"
		if l.Cached != "" {
			have = "has version " + l.Cached
		}
		line(b, "Controller", "its cache lags: of %s it %s, stored is %s", l.Object, have, l.Stored)
		line(b, "", "remedy: nothing, unless it stays so: then look at its log for watches that fail, and at the load of the API server")
	}
	if c.Leads && len(c.Unseen)+len(c.Lags) == 0 {
		line(b, "Controller", "leads, sees what is stored, and all that it has written")
	}
}
