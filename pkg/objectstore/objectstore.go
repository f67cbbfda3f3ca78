// Package objectstore keeps immutable objects under names: layers, plan bodies, rendered
// differences. It has three implementations of one interface: JetStream's object store
// (ADR-20 form, readable by every NATS client), a directory, and memory.
//
// A name is given once. Put writes an object's bytes first and its record last, so an
// object either exists whole or does not exist; Get checks size and digest, so wrong bytes
// never look like the end of a good object.
//
// The package knows names and bytes. It must not know layers, plans or checkpoints, and
// it declares no bucket.
package objectstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Errors that callers check with errors.Is.
var (
	// ErrNotFound says that no object has the name.
	ErrNotFound = errors.New("object not found")
	// ErrCorrupt says that the object's record exists, but its bytes are missing or are
	// not those that were stored.
	ErrCorrupt = errors.New("object is corrupt")
	// ErrFull says that the disk, or a limit on the store, has no room for the object.
	ErrFull = errors.New("store is full")
	// ErrStalled says that a transfer made no progress for the stated time.
	ErrStalled = errors.New("no progress")
	// ErrName says that the name breaks the rule of ValidName.
	ErrName = errors.New("invalid object name")
)

// maxName is the longest name in bytes. With the suffix of a stored file it stays below
// NAME_MAX (255).
const maxName = 200

// Store keeps immutable objects. Every implementation is safe for concurrent use, and
// passes the suite in package objectstoretest.
type Store interface {
	// Put stores what r yields until EOF under name. When a complete object of that name
	// exists, Put returns its Info and reads nothing: that the content is the same is the
	// caller's promise. When r is an io.Seeker, an attempt that failed in transit is made
	// again from r's present offset; otherwise there is one attempt. After an error no new
	// object is visible, except that a lost acknowledgement may hide a success: then the
	// object is complete, and the next Put finds it.
	Put(ctx context.Context, name string, r io.Reader) (Info, error)

	// Get opens an object; the caller closes the reader. The bytes may be trusted only
	// once Read has returned io.EOF: wrong or missing ones make it return ErrCorrupt in
	// its place. The context governs the whole read. Returns ErrNotFound or ErrCorrupt.
	Get(ctx context.Context, name string) (io.ReadCloser, error)

	// Stat describes an object without reading its bytes, and checks that all of them are
	// there. Returns ErrNotFound or ErrCorrupt.
	Stat(ctx context.Context, name string) (Info, error)

	// Delete removes an object; an absent one is success. A reader that is open may fail
	// with ErrCorrupt.
	Delete(ctx context.Context, name string) error

	// List describes every object in byte order of names, without checking that all bytes
	// are there. Its cost grows with the store: keep it off hot paths.
	List(ctx context.Context) ([]Info, error)
}

// Sweeper is the second ability of stores in which an interrupted Put or Delete can leave
// bytes that no record owns.
type Sweeper interface {
	// Sweep removes such bytes when the newest of them is older than olderThan by the
	// store's own clock, and returns how many leavings it removed. It leaves uploads in
	// progress alone as long as they stand still for less than olderThan.
	Sweep(ctx context.Context, olderThan time.Duration) (int, error)
}

// LatePutter is the second ability of stores that can take the bytes of an object before its
// name, which they may decide, is known.
type LatePutter interface {
	// PutLate is Put under the name that name returns. It is called once, after all of r has
	// been read; its error is that of PutLate, and nothing is stored then.
	PutLate(ctx context.Context, r io.Reader, name func() (string, error)) (Info, error)
}

// PutLate stores r under the name that name returns, at once where the store can, else as
// soon as there is the name. name blocks until then, and may be called before r is read.
func PutLate(ctx context.Context, s Store, r io.Reader, name func() (string, error)) (Info, error) {
	if late, ok := s.(LatePutter); ok {
		return late.PutLate(ctx, r, name)
	}
	known, err := name()
	if err != nil {
		return Info{}, err
	}
	return s.Put(ctx, known, r)
}

// Info describes a stored object.
type Info struct {
	Name string
	Size int64 // bytes
	// Digest is "sha256:" and 64 hex digits, of the bytes as stored.
	Digest string
	// ModTime is when the object was stored, by the store's clock.
	ModTime time.Time
	// Version grows with each change of the object's record; it is of use to a Marker only.
	Version uint64
	// Marked is when a Marker marked the object, by the store's clock; zero if it is not marked.
	Marked time.Time
	// Quarantined says why the object must not be used, "" if it may. Only List shows it.
	Quarantined string
}

// ValidName returns ErrName unless name has 1 to 200 letters, digits, ".", "_", "-" or "/"
// and begins with a letter or digit.
func ValidName(name string) error {
	if len(name) == 0 || len(name) > maxName {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrName, len(name), maxName)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		punct := c == '.' || c == '_' || c == '-' || c == '/'
		if !alnum && (!punct || i == 0) {
			return fmt.Errorf("%w: character %q at %d", ErrName, c, i)
		}
	}
	return nil
}

// failed wraps err as every exported method returns it.
func failed(verb, name string, err error) error {
	return fmt.Errorf("objectstore: %s %q: %w", verb, name, err)
}

// digestString renders a SHA-256 sum as Info.Digest.
func digestString(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

// verifier passes on what src yields and, in place of io.EOF, returns ErrCorrupt unless
// size and digest are those of want.
type verifier struct {
	src  io.ReadCloser
	want Info
	hash hash.Hash
	size int64
	err  error // sticky, so that a second Read cannot turn ErrCorrupt into io.EOF
}

func newVerifier(src io.ReadCloser, want Info) *verifier {
	return &verifier{src: src, want: want, hash: sha256.New()}
}

func (v *verifier) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.src.Read(p)
	v.hash.Write(p[:n])
	v.size += int64(n)
	switch {
	case v.size > v.want.Size:
		err = fmt.Errorf("%w: more than its %d bytes", ErrCorrupt, v.want.Size)
	case err == io.EOF:
		err = v.verdict()
	}
	if err != nil && err != io.EOF {
		err = failed("get", v.want.Name, err)
	}
	v.err = err
	return n, err
}

// verdict returns io.EOF when everything that was read is what was stored.
func (v *verifier) verdict() error {
	if v.size != v.want.Size {
		return fmt.Errorf("%w: %d of %d bytes", ErrCorrupt, v.size, v.want.Size)
	}
	if got := digestString(v.hash.Sum(nil)); got != v.want.Digest && !fault.Off("store.digest") {
		return fmt.Errorf("%w: digest %s, want %s", ErrCorrupt, got, v.want.Digest)
	}
	return io.EOF
}

func (v *verifier) Close() error { return v.src.Close() }
