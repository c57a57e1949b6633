// SPDX-License-Identifier: Apache-2.0

package explore

import "math/bits"

// hash is a running 128-bit checksum, the same in every process. It is made for
// distinguishing states, not against an adversary: with ten million states the
// chance that two share one is about 10^-25.
type hash struct{ a, b uint64 }

const (
	prime1 = 0x9e3779b97f4a7c15
	prime2 = 0xd6e8feb86659fd93
	prime3 = 0xa0761d6478bd642f
	prime4 = 0xe7037ed1a0b428db
)

func newHash() hash { return hash{prime1, prime2} }

// word mixes 64 bits in.
func (h *hash) word(w uint64) {
	hi, lo := bits.Mul64(h.a^w, prime3)
	h.a = bits.RotateLeft64(hi^lo^h.b, 23) + prime1
	hi, lo = bits.Mul64(h.b^w^prime4, prime2)
	h.b = bits.RotateLeft64(hi^lo^h.a, 37) + w
}

// bytes mixes bytes in, and how many they are.
func (h *hash) bytes(bs ...byte) {
	var w uint64
	for i, b := range bs {
		w |= uint64(b) << (8 * (i % 8))
		if i%8 == 7 {
			h.word(w)
			w = 0
		}
	}
	h.word(w)
	h.word(uint64(len(bs)))
}

func (h *hash) text(s string) { h.bytes([]byte(s)...) }

// sum returns the checksum of what was mixed in.
func (h *hash) sum() (a, b uint64) {
	f := *h
	f.word(prime4)
	f.word(prime1)
	return f.a, f.b
}
