// Package objectstoretest is the suite that every objectstore.Store passes. A new
// implementation's test is one call of Run.
package objectstoretest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// Run tests the stores that open returns, each empty and of the test it is called in.
func Run(t *testing.T, open func(*testing.T) objectstore.Store) {
	tests := []struct {
		name string
		run  func(*testing.T, objectstore.Store)
	}{
		{"RoundTrip", testRoundTrip},
		{"ShortReads", testShortReads},
		{"FromOffset", testFromOffset},
		{"Names", testNames},
		{"ExistingIsSuccess", testExisting},
		{"LateName", testLateName},
		{"Absent", testAbsent},
		{"DeleteThenPut", testDeleteThenPut},
		{"List", testList},
		{"SourceFails", testSourceFails},
		{"Cancelled", testCancelled},
		{"CloseEarly", testCloseEarly},
		{"SameNameAtOnce", testSameNameAtOnce},
		{"ManyAtOnce", testManyAtOnce},
		{"SweepLeavesObjects", testSweep},
		{"MarkReap", testMarkReap},
		{"SpareWins", testSpareWins},
		{"PutSpares", testPutSpares},
		{"Quarantine", testQuarantine},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
	}
}

// Bytes returns n bytes that differ with the seed and hold no repetition.
func Bytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = src.Read(b) // never fails
	return b
}

// ReadAll gets an object to its end.
func ReadAll(ctx context.Context, s objectstore.Store, name string) (data []byte, err error) {
	r, err := s.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return io.ReadAll(r)
}

// Put stores data and checks the description that comes back.
func Put(t *testing.T, s objectstore.Store, name string, data []byte) objectstore.Info {
	t.Helper()
	got, err := s.Put(t.Context(), name, bytes.NewReader(data))
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	sum := sha256.Sum256(data)
	want := objectstore.Info{Name: name, Size: int64(len(data)), Digest: "sha256:" + hex.EncodeToString(sum[:]), ModTime: got.ModTime, Version: got.Version}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("Put %q: got - want +\n%s", name, diff)
	}
	if age := time.Since(got.ModTime).Abs(); age > time.Minute {
		t.Errorf("Put %q: ModTime is %v off", name, age)
	}
	return got
}

// Check reads an object and compares it with data.
func Check(t *testing.T, s objectstore.Store, name string, data []byte) {
	t.Helper()
	got, err := ReadAll(t.Context(), s, name)
	if err != nil {
		t.Errorf("Get %q: %v", name, err)
		return
	}
	if !bytes.Equal(got, data) {
		t.Errorf("Get %q: %d bytes differ from the %d stored", name, len(got), len(data))
	}
}

func checkAbsent(t *testing.T, s objectstore.Store, name string) {
	t.Helper()
	if _, err := s.Stat(t.Context(), name); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("Stat %q: got %v, want ErrNotFound", name, err)
	}
	if _, err := ReadAll(t.Context(), s, name); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("Get %q: got %v, want ErrNotFound", name, err)
	}
}

func testRoundTrip(t *testing.T, s objectstore.Store) {
	const chunk = 512 << 10
	for _, size := range []int{0, 1, 1000, chunk - 1, chunk, chunk + 1, 7*chunk + 13} {
		name := fmt.Sprintf("size-%d", size)
		data := Bytes(uint64(size), size)
		put := Put(t, s, name, data)
		Check(t, s, name, data)
		stat, err := s.Stat(t.Context(), name)
		if err != nil {
			t.Fatalf("Stat %q: %v", name, err)
		}
		if diff := cmp.Diff(stat, put); diff != "" {
			t.Errorf("Stat %q: got - want +\n%s", name, diff)
		}
	}
}

func testShortReads(t *testing.T, s objectstore.Store) {
	data := Bytes(1, 700_000)
	readers := map[string]io.Reader{
		"half":      iotest.HalfReader(bytes.NewReader(data)),
		"data-err":  iotest.DataErrReader(bytes.NewReader(data)),
		"few-bytes": &slowReader{r: bytes.NewReader(data)},
	}
	for name, r := range readers {
		if _, err := s.Put(t.Context(), name, r); err != nil {
			t.Errorf("Put %q: %v", name, err)
		}
		Check(t, s, name, data)
	}
}

// slowReader yields 1000 bytes a call, as a decompressor might.
type slowReader struct{ r io.Reader }

func (s *slowReader) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 1000)]) }

func testFromOffset(t *testing.T, s objectstore.Store) {
	data := Bytes(2, 5000)
	r := bytes.NewReader(data)
	if _, err := r.Seek(1234, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), "rest", r); err != nil {
		t.Fatalf("Put: %v", err)
	}
	Check(t, s, "rest", data[1234:])
}

func testNames(t *testing.T, s objectstore.Store) {
	good := []string{"a", "plans/01J/diff.json", "sha256-00ff.tar.zst", "a..b", strings.Repeat("n", 200)}
	for i, name := range good {
		data := Bytes(uint64(i), 100+i)
		Put(t, s, name, data)
		Check(t, s, name, data)
	}
	for _, name := range []string{"", ".hidden", "../x", "/abs", "a b", "a%2Fb", "a@b", "ä", "a\x00", strings.Repeat("n", 201)} {
		if _, err := s.Put(t.Context(), name, strings.NewReader("x")); !errors.Is(err, objectstore.ErrName) {
			t.Errorf("Put %q: got %v, want ErrName", name, err)
		}
	}
}

func testExisting(t *testing.T, s objectstore.Store) {
	data := Bytes(3, 600_000)
	first := Put(t, s, "once", data)
	again, err := s.Put(t.Context(), "once", iotest.ErrReader(errors.New("must not be read")))
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	if diff := cmp.Diff(again, first); diff != "" {
		t.Errorf("second Put: got - want +\n%s", diff)
	}
	Check(t, s, "once", data)
}

func testLateName(t *testing.T, s objectstore.Store) {
	data := Bytes(4, 1<<20+11)
	refused := errors.New("no name")
	tests := []struct {
		what, name string
		err, want  error
	}{
		{what: "name fails", err: refused, want: refused},
		{what: "name is invalid", name: "a b", want: objectstore.ErrName},
		{what: "new", name: "late"},
		{what: "there already", name: "late"},
	}
	for _, tt := range tests {
		asked := 0
		_, err := objectstore.PutLate(t.Context(), s, bytes.NewReader(data), func() (string, error) {
			asked++
			return tt.name, tt.err
		})
		if !errors.Is(err, tt.want) || asked != 1 {
			t.Errorf("%s: got %v and asked %d times, want %v and once", tt.what, err, asked, tt.want)
		}
		if tt.want != nil {
			checkAbsent(t, s, "late")
		}
	}
	Check(t, s, "late", data)
	sweeper, ok := s.(objectstore.Sweeper)
	if !ok {
		return
	}
	if n, err := sweeper.Sweep(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("Sweep: got %d leavings and %v, want none", n, err)
	}
}

func testAbsent(t *testing.T, s objectstore.Store) {
	checkAbsent(t, s, "none")
	if err := s.Delete(t.Context(), "none"); err != nil {
		t.Errorf("Delete: %v", err)
	}
}

func testDeleteThenPut(t *testing.T, s objectstore.Store) {
	Put(t, s, "x", Bytes(4, 1_200_000))
	for range 2 {
		if err := s.Delete(t.Context(), "x"); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		checkAbsent(t, s, "x")
	}
	other := Bytes(5, 900_000)
	Put(t, s, "x", other)
	Check(t, s, "x", other)
}

func testList(t *testing.T, s objectstore.Store) {
	list := func() []objectstore.Info {
		t.Helper()
		infos, err := s.List(t.Context())
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		return infos
	}
	if got := list(); len(got) != 0 {
		t.Errorf("List of an empty store: %v", got)
	}
	var want []objectstore.Info
	for _, name := range []string{"a", "a-b", "a/b", "b"} {
		want = append(want, Put(t, s, name, []byte(name)))
	}
	Put(t, s, "aa", nil)
	if err := s.Delete(t.Context(), "aa"); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if diff := cmp.Diff(list(), want); diff != "" {
		t.Errorf("List: got - want +\n%s", diff)
	}
}

func testSourceFails(t *testing.T, s objectstore.Store) {
	broken := errors.New("disk on fire")
	for _, good := range []int{0, 100, 1_500_000} {
		r := io.MultiReader(bytes.NewReader(Bytes(6, good)), iotest.ErrReader(broken))
		if _, err := s.Put(t.Context(), "x", r); !errors.Is(err, broken) {
			t.Errorf("Put: got %v, want the reader's error", err)
		}
		checkAbsent(t, s, "x")
	}
}

func testCancelled(t *testing.T, s objectstore.Store) {
	Put(t, s, "there", Bytes(7, 1_500_000))
	ctx, cancel := context.WithCancel(t.Context())
	r := io.MultiReader(bytes.NewReader(Bytes(7, 1_500_000)), &callReader{call: cancel}, bytes.NewReader(Bytes(8, 600_000)))
	if _, err := s.Put(ctx, "x", r); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: got %v, want context.Canceled", err)
	}
	checkAbsent(t, s, "x")
	if _, err := ReadAll(ctx, s, "there"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: got %v, want context.Canceled", err)
	}
}

// callReader is empty, and calls once.
type callReader struct{ call func() }

func (c *callReader) Read([]byte) (int, error) {
	c.call()
	return 0, io.EOF
}

func testCloseEarly(t *testing.T, s objectstore.Store) {
	data := Bytes(9, 3_000_000)
	Put(t, s, "x", data)
	for range 3 {
		r, err := s.Get(t.Context(), "x")
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if _, err := io.CopyN(io.Discard, r, 10); err != nil {
			t.Errorf("read: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	Check(t, s, "x", data)
}

func testSameNameAtOnce(t *testing.T, s objectstore.Store) {
	data := Bytes(10, 1_300_000)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := s.Put(t.Context(), "same", bytes.NewReader(data)); err != nil {
				t.Errorf("Put: %v", err)
			}
		})
	}
	wg.Wait()
	Check(t, s, "same", data)
}

func testManyAtOnce(t *testing.T, s objectstore.Store) {
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			name := fmt.Sprintf("many-%d", i)
			data := Bytes(uint64(100+i), 1_100_000+i)
			Put(t, s, name, data)
			Check(t, s, name, data)
		})
	}
	wg.Wait()
}

func testSweep(t *testing.T, s objectstore.Store) {
	sweeper, ok := s.(objectstore.Sweeper)
	if !ok {
		t.Skip("reason: this store leaves nothing behind, so it has no Sweep")
	}
	data := Bytes(11, 1_100_000)
	Put(t, s, "keep/it", data)
	Put(t, s, "drop", data)
	if err := s.Delete(t.Context(), "drop"); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if _, err := sweeper.Sweep(t.Context(), 0); err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	Check(t, s, "keep/it", data)
	checkAbsent(t, s, "drop")
	if n, err := sweeper.Sweep(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("second Sweep: got %d, %v, want nothing left to do", n, err)
	}
	Put(t, s, "drop", data)
	Check(t, s, "drop", data)
}
