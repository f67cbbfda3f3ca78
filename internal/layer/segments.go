package layer

import (
	"fmt"
	"io"
	"os"
)

// segmentsOf finds the parts of a file that are not holes. Of very many the nearest are joined, over holes that get
// lost, until maxSegments are left.
func segmentsOf(f *os.File, size int64) ([]segment, error) {
	segs, err := dataOf(f, size)
	if err != nil {
		return nil, err
	}
	for gap := int64(1); len(segs) > maxSegments; gap *= 2 {
		segs = joinSegments(segs, gap)
	}
	return segs, nil
}

// dataOf finds the parts of a file that are not holes.
func dataOf(f *os.File, size int64) ([]segment, error) {
	var segs []segment
	for at := int64(0); at < size; {
		start, end, err := nextData(f, at, size)
		if err != nil {
			return nil, err
		}
		if start >= size {
			break
		}
		segs = append(segs, segment{start, end - start})
		at = end
	}
	return segs, nil
}

// joinSegments joins neighbours that are at most gap bytes apart.
func joinSegments(segs []segment, gap int64) []segment {
	joined := segs[:1]
	for _, s := range segs[1:] {
		last := &joined[len(joined)-1]
		if s.off-(last.off+last.len) <= gap {
			last.len = s.off + s.len - last.off
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// segmentContent is the content of a file whose stored parts come one after the other from the reader. As a
// fileContent it puts them where they belong.
type segmentContent struct {
	io.Reader
	segs []segment
	buf  []byte
}

func (c segmentContent) writeTo(f *os.File) error {
	for _, s := range c.segs {
		if _, err := f.Seek(s.off, io.SeekStart); err != nil {
			return err
		}
		if err := copyExactly(writerOnly{f}, c.Reader, s.len, c.buf); err != nil {
			return err
		}
	}
	return nil
}

func copyExactly(w io.Writer, r io.Reader, n int64, buf []byte) error {
	got, err := io.CopyBuffer(w, io.LimitReader(r, n), buf)
	if err == nil && got < n {
		err = fmt.Errorf("got %d bytes, want %d: %w", got, n, io.ErrUnexpectedEOF)
	}
	return err
}
