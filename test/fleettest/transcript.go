package fleettest

import (
	"bytes"
	"sync"
	"time"
)

// Transcript keeps what a process printed and wakes those who wait for it.
type Transcript struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	change chan struct{} // closed at the next change
	done   bool
}

func newTranscript() *Transcript { return &Transcript{change: make(chan struct{})} }

func (s *Transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(b)
	if !s.done {
		close(s.change)
		s.change = make(chan struct{})
	}
	return len(b), nil
}

func (s *Transcript) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		s.done = true
		close(s.change)
	}
}

func (s *Transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// Await waits until cond holds of all that was printed; false if the process ended first.
func (s *Transcript) Await(limit time.Duration, cond func(string) bool) bool {
	deadline := time.After(limit)
	for {
		s.mu.Lock()
		change, ok, done := s.change, cond(s.buf.String()), s.done
		s.mu.Unlock()
		if ok || done {
			return ok
		}
		select {
		case <-change:
		case <-deadline:
			return false
		}
	}
}
