package layer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/warmfleet/warmfleet/internal/fault"
)

const (
	digestPrefix = "sha256:"
	namePrefix   = "sha256-"
	nameSuffix   = ".tar.zst"
	ioBuffer     = 256 << 10
)

// tarInput is a stored layer to be read.
type tarInput struct {
	// Name is the stored name whose digest the tar must have, "" if the caller compares it.
	Name   string
	R      io.Reader
	Limits Limits
	// Plain digests the tar in place of SHA-256, for a caller that needs no name. Nil is none.
	Plain hash.Hash
}

// tarSums are the digests and sizes of a stored layer, of its tar and of its compressed form.
type tarSums struct {
	tar, packed         string // in hex; sha256 but for a tar that was read with another digest
	tarSize, packedSize int64
}

// digestOfName gives the digest in a stored name, in hex.
func digestOfName(name string) (string, error) {
	s, ok1 := strings.CutPrefix(name, namePrefix)
	s, ok2 := strings.CutSuffix(s, nameSuffix)
	if _, err := hex.DecodeString(s); err != nil || !ok1 || !ok2 || len(s) != 2*sha256.Size || strings.ToLower(s) != s {
		return "", corrupt("%.100q is not the name of a stored layer", name)
	}
	return s, nil
}

// readTar decodes a stored layer and calls fn for each of its entries with the stored data of a file, segment after
// segment. It returns nil only if the whole input is one sound archive of the right digest; until then what fn
// was given is only what the input claims. An error of fn ends it and is returned as it is.
func readTar(ctx context.Context, in tarInput, fn func(*tarEntry, io.Reader) error) (tarSums, error) {
	var want string
	if in.Name != "" {
		var err error
		if want, err = digestOfName(in.Name); err != nil {
			return tarSums{}, err
		}
	}
	limits := in.Limits.withDefaults()
	src := newMeter(ctxReader{ctx, in.R})
	dec, err := zstd.NewReader(&oneFrame{r: bufio.NewReaderSize(src, ioBuffer)},
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(limits.Window))
	if err != nil {
		return tarSums{}, fmt.Errorf("layer: make decoder: %w", err)
	}
	defer dec.Close()
	plain := newMeter(dec)
	if in.Plain != nil {
		plain.h = in.Plain
	}
	bound := &boundReader{plain: plain, src: src, limits: limits}
	t := newTarReader(bufio.NewReaderSize(bound, ioBuffer), limits)
	for {
		e, err := t.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = fn(e, t)
		}
		if err != nil {
			return tarSums{}, err
		}
	}
	sums := tarSums{plain.sum(), src.sum(), plain.n, src.n}
	if want != "" && sums.tar != want && !fault.Off("layer.unpack-digest") {
		return sums, corrupt("the digest of the tar is %s", sums.tar)
	}
	return sums, nil
}

// tally counts and digests what is written to it.
type tally struct {
	h hash.Hash
	n int64
}

func newTally() tally { return tally{h: sha256.New()} }

func (t *tally) Write(p []byte) (int, error) {
	t.n += int64(len(p))
	return t.h.Write(p)
}

func (t *tally) sum() string { return hex.EncodeToString(t.h.Sum(nil)) }

// meter tallies what is read from r, and remembers r's error.
type meter struct {
	tally
	r   io.Reader
	err error
}

func newMeter(r io.Reader) *meter { return &meter{tally: newTally(), r: r} }

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.Write(p[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	return n, err
}

// boundReader reads decoded bytes within the limits, and sorts errors: those of the input pass as they are, all
// others are about the archive.
type boundReader struct {
	plain, src *meter
	limits     Limits
}

func (b *boundReader) Read(p []byte) (int, error) {
	n, err := b.plain.Read(p)
	got := b.plain.n
	switch {
	case got > b.limits.Bytes:
		return 0, fmt.Errorf("%w: more than %d bytes", ErrLimit, b.limits.Bytes)
	case got > ratioFloor && got/b.limits.Ratio > b.src.n:
		return 0, fmt.Errorf("%w: %d bytes from %d compressed ones", ErrLimit, got, b.src.n)
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case b.src.err != nil:
		return n, b.src.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return n, fmt.Errorf("%w: %w", ErrLimit, err)
	case errors.Is(err, ErrCorrupt):
		return n, err
	}
	return n, fmt.Errorf("%w: %w", ErrCorrupt, err)
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// oneFrame lets exactly one zstd frame pass and then insists on the end of the input. A decoder by itself skips
// frames without content and a few stray bytes, which no digest of the tar would show. (RFC 8878, 3.1.1)
type oneFrame struct {
	r *bufio.Reader
	// left is what may pass before the next header is looked at.
	left                int64
	begun, last, ending bool
	checksum            int64
}

func (f *oneFrame) Read(p []byte) (int, error) {
	for f.left == 0 {
		if err := f.advance(); err != nil {
			return 0, err
		}
	}
	n, err := f.r.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = corrupt("truncated")
	}
	return n, err
}

func (f *oneFrame) advance() error {
	switch {
	case f.last && !f.ending:
		f.ending, f.left = true, f.checksum
		if f.left > 0 {
			return nil
		}
		fallthrough
	case f.ending:
		if _, err := f.r.Peek(1); err != nil {
			return err
		}
		return corrupt("data behind the compressed frame")
	case !f.begun:
		return f.frameHeader()
	}
	b, err := f.r.Peek(3)
	if err != nil {
		return short(err)
	}
	head := int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16
	size := head >> 3
	if typ := head >> 1 & 3; typ == 1 { // a run: one byte, repeated
		size = 1
	}
	f.last, f.left = head&1 != 0, 3+size
	return nil
}

func (f *oneFrame) frameHeader() error {
	b, err := f.r.Peek(zstd.HeaderMaxSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var h zstd.Header
	if err := h.Decode(b); err != nil || h.Skippable {
		return corrupt("not a zstd frame")
	}
	f.begun, f.left = true, int64(h.HeaderSize)
	if h.HasCheckSum {
		f.checksum = 4
	}
	return nil
}

func short(err error) error {
	if errors.Is(err, io.EOF) {
		return corrupt("truncated")
	}
	return err
}
