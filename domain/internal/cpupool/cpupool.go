// SPDX-License-Identifier: Apache-2.0

// Package cpupool allocates the threads of a host that are dedicated to a guest.
package cpupool

import (
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// Pool holds the free threads.
type Pool struct {
	cells []*cell // in the order of the host's topology
	width int     // threads per guest core
}

// cell holds the free threads of one NUMA node.
type cell struct {
	whole [][]uint // threads of host cores with room for a guest core
	loose []uint   // threads of all others
}

// NewPool groups the threads by NUMA node and core. It ignores threads that are not in the
// topology.
func NewPool(topology []domain.Cell, threads []uint, width int) *Pool {
	p := &Pool{width: width}
	left := map[uint]bool{}
	for _, id := range threads {
		left[id] = true
	}
	for _, node := range topology {
		var cores [][]uint
		index := map[[2]uint]int{} // socket and core → position
		for _, t := range node.CPUs {
			if !left[t.ID] {
				continue
			}
			left[t.ID] = false
			at := [2]uint{t.Socket, t.Core}
			i, known := index[at]
			if !known {
				i = len(cores)
				index[at], cores = i, append(cores, nil)
			}
			cores[i] = append(cores[i], t.ID)
		}
		c := &cell{}
		for _, core := range cores {
			c.put(core, width)
		}
		p.cells = append(p.cells, c)
	}
	return p
}

// put adds the free threads of a host core.
func (c *cell) put(core []uint, width int) {
	if len(core) >= width {
		c.whole = append(c.whole, core)
	} else {
		c.loose = append(c.loose, core...)
	}
}

// takeWhole takes n threads of the first whole host core, nil if there is none. The rest of that
// core is used next if it has room for another guest core.
func (c *cell) takeWhole(n, width int) []uint {
	if len(c.whole) == 0 {
		return nil
	}
	core := c.whole[0]
	c.whole = c.whole[1:]
	if rest := core[n:]; len(rest) >= width {
		c.whole = slices.Insert(c.whole, 0, rest)
	} else {
		c.loose = append(c.loose, rest...)
	}
	return core[:n:n]
}

// takeLoose takes n threads of any host cores, nil if there are too few.
func (c *cell) takeLoose(n int) []uint {
	if len(c.loose) < n {
		return nil
	}
	out := c.loose[:n:n]
	c.loose = c.loose[n:]
	return out
}

// Fit allocates the threads for the given number of guest cores and returns the number of cores
// that did not fit. It uses whole host cores first, then threads within a NUMA node and, if
// crossing is allowed, threads of any node.
func (p *Pool) Fit(cores int, crossing bool) (threads []uint, missing int) {
	for _, take := range []func(*cell) []uint{
		func(c *cell) []uint { return c.takeWhole(p.width, p.width) },
		func(c *cell) []uint { return c.takeLoose(p.width) },
	} {
		for _, c := range p.cells {
			for len(threads) < cores*p.width {
				got := take(c)
				if got == nil {
					break
				}
				threads = append(threads, got...)
			}
		}
	}
	if crossing {
		for _, c := range p.cells {
			n := min(cores*p.width-len(threads), len(c.loose))
			threads = append(threads, c.takeLoose(n)...)
		}
	}
	return threads, cores - len(threads)/p.width
}

// Thread allocates a single thread: a loose one of the first NUMA node that has any, else one of a
// whole core.
func (p *Pool) Thread() (id uint, ok bool) {
	for _, c := range p.cells {
		if got := c.takeLoose(1); got != nil {
			return got[0], true
		}
		if got := c.takeWhole(1, p.width); got != nil {
			return got[0], true
		}
	}
	return 0, false
}
