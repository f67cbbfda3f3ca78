package checkpoint

import (
	"errors"
	"io"
	"os"
	"sync"
)

// spool is a file that is read while it is being written. One goroutine writes.
type spool struct {
	f *os.File

	mu   sync.Mutex
	more *sync.Cond
	size int64
	end  error // io.EOF once all is written, or what kept the writer from it
}

func newSpool(f *os.File) *spool {
	s := &spool{f: f}
	s.more = sync.NewCond(&s.mu)
	return s
}

// Write implements io.Writer.
func (s *spool) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size += int64(n)
	s.more.Broadcast()
	return n, err
}

// finish ends the file; readers get err after its last byte, or io.EOF if it is nil.
func (s *spool) finish(err error) {
	if err == nil {
		err = io.EOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = err
	s.more.Broadcast()
}

// wait blocks until there are bytes at off, and returns how many, or why there never will be.
func (s *spool) wait(off int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.size <= off && s.end == nil {
		s.more.Wait()
	}
	if s.size > off {
		return s.size - off, nil
	}
	return 0, s.end
}

func (s *spool) reader() io.ReadSeeker { return &spoolReader{s: s} }

type spoolReader struct {
	s   *spool
	off int64
}

// Read implements io.Reader; it waits for the writer.
func (r *spoolReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	there, err := r.s.wait(r.off)
	if err != nil {
		return 0, err
	}
	n, err := r.s.f.ReadAt(p[:min(int64(len(p)), there)], r.off)
	r.off += int64(n)
	return n, err
}

// errSeek: only positions from the start and the present one mean something in a file that grows.
var errSeek = errors.New("checkpoint: seek in a file that is being written: position is not known")

// Seek implements io.Seeker, but for positions from the end.
func (r *spoolReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += r.off
	default:
		return r.off, errSeek
	}
	if offset < 0 {
		return r.off, errSeek
	}
	r.off = offset
	return r.off, nil
}
