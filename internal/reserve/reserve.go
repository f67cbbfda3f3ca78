// Package reserve keeps part of a file system free, for what must go on when what runs on it would fill it: the
// server's store, checkpoints, the host. When less is free it ends what grew most, and says so until there is room again.
//
// It knows sizes and free space; it must not know sandboxes, plans or workers.
package reserve

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// The default is the larger of least (bytes) and one part in share of the file system; of a small one it is one
	// part in smallShare, and nothing below tiny (bytes), where that would hold nothing.
	least, share     = 1 << 30, 50
	smallShare, tiny = 20, 256 << 20
	// slice is the part of the reserve that has to be used up for another end, and that what is ended has grown by at least.
	slice = 16
	// fastest is how fast free space is taken to go, in bytes a second: it says when to look again.
	fastest = 2 << 30
	// soonest and latest bound the pause between two looks.
	soonest, latest = 10 * time.Millisecond, time.Second
)

// Default is how much of a file system of size bytes is kept where nobody says.
func Default(size int64) int64 {
	if size < tiny {
		return 0
	}
	return min(max(least, size/share), size/smallShare)
}

// Running is something that may fill the file system.
type Running struct {
	// Grown is what it wrote, in bytes; an error leaves it out once.
	Grown func() (int64, error)
	// End ends it; why is one line for people. It is called once, and must not wait for the end.
	End func(why string)
}

// Config says what is kept.
type Config struct {
	Dir  string // on the file system
	Keep int64  // bytes; 0 keeps nothing
	// Promised, if set, is what will be taken of free space without being asked for again, in bytes.
	Promised func() int64
	// Changed, if set, is told whenever Low changes.
	Changed func(low string)
}

// Reserve watches one file system. Its methods are safe for concurrent use.
type Reserve struct {
	cfg Config

	near    bool  // free space begins to be short; used by Look alone
	endedAt int64 // free bytes at the last end; likewise

	mu      sync.Mutex
	running map[*Running]int64 // what each had written when free space began to be short, or when it came after that
	low     string
	room    chan struct{} // closed while there is room
}

// unknown is what something had written of which nobody has asked yet.
const unknown = -1

// New makes a reserve; Run watches it.
func New(c Config) *Reserve {
	r := &Reserve{cfg: c, running: map[*Running]int64{}, room: make(chan struct{})}
	close(r.room)
	return r
}

// Enter adds something that runs, until leave.
func (r *Reserve) Enter(run Running) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[&run] = unknown
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, &run)
	}
}

// Low says in one line that less than the reserve is free, "" while there is room.
func (r *Reserve) Low() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.low
}

// Wait returns when there is room, or ctx ends.
func (r *Reserve) Wait(ctx context.Context) error {
	r.mu.Lock()
	room := r.room
	r.mu.Unlock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run watches until ctx ends.
func (r *Reserve) Run(ctx context.Context) {
	if r.cfg.Keep <= 0 {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.Look()):
		}
	}
}

// Look looks once, does what has to be done, and says when to look again. It is for one caller at a time.
func (r *Reserve) Look() time.Duration {
	var st unix.Statfs_t
	if unix.Statfs(r.cfg.Dir, &st) != nil {
		return latest // it is gone, or will be back
	}
	free := int64(st.Bavail) * st.Bsize
	if r.cfg.Promised != nil {
		free -= r.cfg.Promised()
	}
	r.judge(free)
	again := time.Duration(float64(free-r.cfg.Keep) / fastest * float64(time.Second))
	return min(max(again, soonest), latest)
}

func (r *Reserve) judge(free int64) {
	if r.near {
		r.note(func(before int64) bool { return before == unknown })
	}
	switch {
	case free < r.cfg.Keep:
		r.short(free)
	case free >= r.cfg.Keep+r.cfg.Keep/slice: // not at once: what is free goes up and down a little
		r.setLow("")
	}
	wasNear := r.near
	if r.near = free < 2*r.cfg.Keep; r.near && !wasNear {
		r.note(func(int64) bool { return true })
	}
}

// short ends what grew most when the reserve begins to be used, and again with each slice of it.
func (r *Reserve) short(free int64) {
	first := r.Low() == ""
	why := fmt.Sprintf("%s: less than the %s that are kept free is left of its file system", r.cfg.Dir, size(r.cfg.Keep))
	r.setLow(why)
	if !first && free > r.endedAt-r.cfg.Keep/slice {
		return
	}
	r.endedAt = free
	var most *Running
	grown := r.cfg.Keep/slice - 1
	for run, before := range r.entered() {
		if n, err := run.Grown(); err == nil && n-max(before, 0) > grown {
			most, grown = run, n-max(before, 0)
		}
	}
	if most == nil {
		return
	}
	r.mu.Lock()
	_, runs := r.running[most]
	delete(r.running, most)
	r.mu.Unlock()
	if runs {
		most.End(fmt.Sprintf("ended to keep the worker's disk from filling up: it had written most, %s: set disk_gb, write less, or free space", size(grown)))
	}
}

// note remembers what those that are wanted have written, by what is remembered of them.
func (r *Reserve) note(wanted func(before int64) bool) {
	for run, before := range r.entered() {
		if !wanted(before) {
			continue
		}
		n, err := run.Grown()
		if err != nil {
			continue
		}
		r.mu.Lock()
		if _, runs := r.running[run]; runs {
			r.running[run] = n
		}
		r.mu.Unlock()
	}
}

func (r *Reserve) entered() map[*Running]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.running)
}

func (r *Reserve) setLow(low string) {
	r.mu.Lock()
	changed := (r.low == "") != (low == "")
	if changed {
		r.low = low
		if low == "" {
			close(r.room)
		} else {
			r.room = make(chan struct{})
		}
	}
	r.mu.Unlock()
	if changed && r.cfg.Changed != nil {
		r.cfg.Changed(low)
	}
}

// size shows bytes to people.
func size(n int64) string {
	if n < 10<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}
