package mask

import "encoding/binary"

const (
	// blockSize is how many bytes are looked at to tell how far the next secret is at least; MinLength is more.
	blockSize = 3
	// maxWindow bounds what is skipped at once, in bytes, and with it the steps at the end of each chunk.
	maxWindow = 32
	// blockBits is the logarithm of the number of blocks told apart.
	blockBits = 15
)

// skipper finds where a pattern begins without looking at each byte (Wu and Manber, 1994): it looks at the end of a window of
// text as long as the shortest pattern, and moves it as far as no pattern can begin.
type skipper struct {
	window int
	shift  []uint8 // by block; 0: a pattern may have this block at the end of its window
}

// newSkipper makes one of patterns of at least MinLength bytes.
func newSkipper(patterns []string) skipper {
	if len(patterns) == 0 {
		return skipper{}
	}
	k := skipper{window: maxWindow, shift: make([]uint8, 1<<blockBits)}
	for _, p := range patterns {
		k.window = min(k.window, len(p))
	}
	for i := range k.shift {
		k.shift[i] = uint8(k.window - blockSize + 1)
	}
	for _, p := range patterns {
		for end := blockSize; end <= k.window; end++ {
			block := uint32(p[end-3]) | uint32(p[end-2])<<8 | uint32(p[end-1])<<16
			k.shift[bucket(block)] = min(k.shift[bucket(block)], uint8(k.window-end))
		}
	}
	return k
}

func bucket(block uint32) uint32 { return block * 0x9e3779b1 >> (32 - blockBits) }

// quiet is how many bytes from the start of p begin no secret, and no part of one at the end of p.
func (s *Set) quiet(p []byte) int {
	last := s.skip.window - 1 // of the window
	half := last + len(p)/2
	// Two windows at once, one in each half: what one waits for is hidden by the other.
	other := half
	for last < half && other < len(p) {
		shift, otherShift := s.skip.at(p, last), s.skip.at(p, other)
		if shift == 0 {
			if from := last + 1 - s.skip.window; s.begins(p[from : last+1]) {
				return from
			}
			shift = 1
		}
		if otherShift == 0 {
			if s.begins(p[other+1-s.skip.window : other+1]) {
				break
			}
			otherShift = 1
		}
		last += shift
		other += otherShift
	}
	for last < len(p) {
		if last >= half {
			last, half = max(last, other), len(p)
			continue
		}
		shift := s.skip.at(p, last)
		if shift == 0 {
			if from := last + 1 - s.skip.window; s.begins(p[from : last+1]) {
				return from
			}
			shift = 1
		}
		last += shift
	}
	for i := last + 1 - s.skip.window; i < len(p); i++ {
		if s.first[p[i]] != 0 {
			return i
		}
	}
	return len(p)
}

// at is how far a window that ends with the byte at last can be moved.
func (k *skipper) at(p []byte, last int) int {
	return int(k.shift[bucket(binary.LittleEndian.Uint32(p[last-blockSize:])>>8)])
}

// begins tells whether a pattern begins with a window.
func (s *Set) begins(window []byte) bool {
	at := int32(0)
	for _, b := range window {
		if at = s.child(at, b); at == 0 {
			return false
		}
	}
	return true
}
