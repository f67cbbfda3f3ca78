package sandbox

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// roomAge is how long a measurement of what was written serves; what file calls wrote since is added to it.
const roomAge = time.Second

// measured is what was written to the open layer when it was last measured for a file call, in bytes.
type measured struct {
	used int64
	at   time.Time
}

// RoomFor returns isolate.ErrFull when size bytes more in a file would exceed the sandbox's limit of disk, or while the
// worker's own disk is short of room. File calls that write ask it first: what is refused changes nothing.
func (s *Sandbox) RoomFor(path string, size int64) error {
	if s.host.Reserve != nil {
		if low := s.host.Reserve.Low(); low != "" {
			return fmt.Errorf("sandbox: write %q: %w: %s", path, isolate.ErrFull, low)
		}
	}
	limit := s.spec.Limits.Disk
	if limit == 0 {
		return nil
	}
	in, err := s.live()
	if err != nil {
		return err
	}
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	if s.room.used+size > limit || time.Since(s.room.at) > roomAge {
		used, err := s.used(in)
		if err != nil {
			return fmt.Errorf("sandbox: measure what was written before %q: %w", path, err)
		}
		s.room = measured{used, time.Now()}
	}
	if s.room.used+size > limit {
		return fmt.Errorf("sandbox: write %q: %w: %d bytes more than the %d MiB of disk_gb, of which %d MiB are written: remove files, or take a checkpoint",
			path, isolate.ErrFull, s.room.used+size-limit, limit>>20, s.room.used>>20)
	}
	return nil
}

// used is what the guard of a command counts.
func (s *Sandbox) used(in *isolate.Init) (int64, error) {
	s.mu.Lock()
	own := s.disk
	s.mu.Unlock()
	if own == nil {
		return s.written(in)()
	}
	used, full := own.Usage()
	if full {
		used = max(used, s.spec.Limits.Disk)
	}
	beside, err := sizeOf(in.Written())
	return used + beside, err
}

// sizeLeft is what a file holds from its present position on, in bytes.
func sizeLeft(f *os.File) (int64, error) {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return max(info.Size()-at, 0), nil
}

// wrote adds to the last measurement.
func (s *Sandbox) wrote(size int64) {
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	s.room.used += size
}
