// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Sample is what there was when everything had come to rest.
type Sample struct {
	// At is the time since the beginning, Operations how many there were by then.
	At         time.Duration `json:"at"`
	Operations int           `json:"operations"`
	// Values are what was measured, by name.
	Values map[string]float64 `json:"values"`
}

// Bound says how much of something is too much.
type Bound struct {
	// Name is that of the value.
	Name string
	// Most is how much there may ever be when all is at rest; negative is any number.
	Most float64
	// Share and Slack say by how much the value may grow over the whole run: by a share of what it was, and by that
	// much besides. The end is compared with the beginning by medians of a third of the samples each, and what grows
	// has to do so from each third to the next: a single outlier is no slope. Both zero: not judged.
	Share, Slack float64
}

// thirds is how many samples there have to be for a slope.
const thirds = 6

// Growth is how a value has grown.
type Growth struct {
	Name string `json:"name"`
	// First, Middle and Last are the medians of the thirds of the samples.
	First  float64 `json:"first"`
	Middle float64 `json:"middle"`
	Last   float64 `json:"last"`
	// PerHour is the median of the slopes between all pairs of samples (Theil and Sen), which a few outliers do not
	// change.
	PerHour float64 `json:"perHour"`
	// Allowed is how much it may have grown.
	Allowed float64 `json:"allowed"`
}

// Grows reports whether the value grows without bound.
func (g Growth) Grows() bool {
	return g.Last-g.First > g.Allowed && g.Middle > g.First && g.Last > g.Middle
}

// GrowthOf measures how a value has grown. It is false if there are too few samples.
func GrowthOf(samples []Sample, b Bound) (Growth, bool) {
	g := Growth{Name: b.Name}
	var at, values []float64
	for _, s := range samples {
		if v, known := s.Values[b.Name]; known {
			at, values = append(at, s.At.Hours()), append(values, v)
		}
	}
	n := len(values)
	if n < thirds {
		return g, false
	}
	g.First, g.Middle, g.Last = median(values[:n/3]), median(values[n/3:n-n/3]), median(values[n-n/3:])
	g.Allowed = b.Share*g.First + b.Slack
	var slopes []float64
	for i := range values {
		for j := range i {
			if at[i] > at[j] {
				slopes = append(slopes, (values[i]-values[j])/(at[i]-at[j]))
			}
		}
	}
	g.PerHour = median(slopes)
	return g, true
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Judge returns what is wrong with the samples.
func Judge(samples []Sample, bounds []Bound) []string {
	var wrong []string
	for _, b := range bounds {
		seen := false
		for _, s := range samples {
			v, known := s.Values[b.Name]
			seen = seen || known
			if known && b.Most >= 0 && v > b.Most {
				wrong = append(wrong, fmt.Sprintf("leak: %s is %g after %s, at rest, at most %g is right", b.Name, v, s.At.Round(time.Second), b.Most))
			}
		}
		if !seen {
			wrong = append(wrong, fmt.Sprintf("%s was never measured", b.Name))
		}
		if b.Share == 0 && b.Slack == 0 {
			continue
		}
		if g, enough := GrowthOf(samples, b); enough && g.Grows() {
			wrong = append(wrong, fmt.Sprintf("slope: %s went from %.5g by %.5g to %.5g, %.3g an hour; %.5g more is right", b.Name, g.First, g.Middle, g.Last, g.PerHour, g.Allowed))
		}
	}
	return wrong
}

// Storms counts writes of each object and finds those that are written without end. The zero value is not ready; use
// [NewStorms]. Its methods are safe for concurrent use.
type Storms struct {
	// within and most say how many writes of one object within which time are a storm.
	within time.Duration
	most   int

	mu     sync.Mutex // guards what follows
	recent map[string][]time.Time
	// worst is the most that was seen, whose is the object.
	worst  int
	whose  string
	storms map[string]int
	total  int
}

// NewStorms takes more than most writes of one object within that time for a storm.
func NewStorms(within time.Duration, most int) *Storms {
	return &Storms{within: within, most: most, recent: map[string][]time.Time{}, storms: map[string]int{}}
}

// Wrote records a write, and reports whether it is part of a storm. Writes must come in order of time.
func (s *Storms) Wrote(object string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	all := append(s.recent[object], at)
	from := slices.IndexFunc(all, func(t time.Time) bool { return at.Sub(t) < s.within })
	all = all[from:]
	s.recent[object] = all
	if len(all) > s.worst {
		s.worst, s.whose = len(all), object
	}
	if len(all) > s.most {
		s.storms[object] = max(s.storms[object], len(all))
	}
	return len(all) > s.most
}

// Forget drops what is known of objects that were not written for a while.
func (s *Storms) Forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.recent, func(_ string, all []time.Time) bool { return now.Sub(all[len(all)-1]) >= s.within })
}

// Total is how many writes there were, Worst the most of one object within the time, and whose.
func (s *Storms) Total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Worst is the most writes of one object within the time, and which object that was.
func (s *Storms) Worst() (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worst, s.whose
}

// Wrong says which objects were written too often.
func (s *Storms) Wrong() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wrong []string
	for _, o := range slices.Sorted(maps.Keys(s.storms)) {
		wrong = append(wrong, fmt.Sprintf("storm: %d writes of %s within %s, at most %d are right", s.storms[o], o, s.within, s.most))
	}
	return wrong
}
