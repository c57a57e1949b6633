// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"sort"
)

// chunkSize is the number of nodes in a full chunk.
const chunkSize = 256

// ranked is a sorted list of nodes in chunks. Finding a place takes O(log n) comparisons,
// inserting and removing move at most one chunk, and ranks are counted per chunk. Appending
// and removing the first node, the common case in a queue, take two comparisons.
type ranked struct {
	chunks [][]*node
	n      int
}

func (l *ranked) first() *node {
	if l.n == 0 {
		return nil
	}
	return l.chunks[0][0]
}

// find returns the chunk and the place in it where the node is, or would be. There is
// always a chunk; it is empty only if it is the only one.
func (l *ranked) find(n *node, less func(a, b *node) bool) (int, int) {
	last := len(l.chunks) - 1
	end := l.chunks[last]
	switch {
	case len(end) == 0 || less(end[len(end)-1], n):
		return last, len(end)
	case !less(l.chunks[0][0], n):
		return 0, 0
	}
	c := sort.Search(last, func(i int) bool { return !less(l.chunks[i][len(l.chunks[i])-1], n) })
	chunk := l.chunks[c]
	return c, sort.Search(len(chunk), func(i int) bool { return !less(chunk[i], n) })
}

func (l *ranked) insert(n *node, less func(a, b *node) bool) {
	l.n++
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, append(make([]*node, 0, 4), n))
		return
	}
	c, at := l.find(n, less)
	l.chunks[c] = slices.Insert(l.chunks[c], at, n)
	if full := l.chunks[c]; len(full) == chunkSize {
		half := append(make([]*node, 0, chunkSize), full[chunkSize/2:]...)
		clear(full[chunkSize/2:])
		l.chunks[c] = full[:chunkSize/2]
		l.chunks = slices.Insert(l.chunks, c+1, half)
	}
}

// remove removes a node that is in the list.
func (l *ranked) remove(n *node, less func(a, b *node) bool) {
	c, at := l.find(n, less)
	l.n--
	chunk := slices.Delete(l.chunks[c], at, at+1)
	l.chunks[c] = chunk
	switch {
	case len(chunk) == 0 && len(l.chunks) > 1:
		l.chunks = slices.Delete(l.chunks, c, c+1)
	case len(chunk) < chunkSize/4 && c+1 < len(l.chunks) && len(chunk)+len(l.chunks[c+1]) < chunkSize*3/4:
		l.chunks[c] = append(chunk, l.chunks[c+1]...)
		l.chunks = slices.Delete(l.chunks, c+1, c+2)
	}
}

// rank returns how many nodes precede the node, which is in the list.
func (l *ranked) rank(n *node, less func(a, b *node) bool) int {
	c, at := l.find(n, less)
	for _, chunk := range l.chunks[:c] {
		at += len(chunk)
	}
	return at
}

// at returns the node of the rank, from 0.
func (l *ranked) at(rank int) *node {
	for _, chunk := range l.chunks {
		if rank < len(chunk) {
			return chunk[rank]
		}
		rank -= len(chunk)
	}
	return nil
}
