package checkpoint

import (
	"context"
	"sync"
)

// flight lets one caller work on a key at a time; later callers repeat the work after it,
// which is cheap because the work looks first whether it was done.
type flight struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

func (f *flight) do(ctx context.Context, key string, work func() error) error {
	for {
		f.mu.Lock()
		wait := f.busy[key]
		if wait == nil {
			break
		}
		f.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	if f.busy == nil {
		f.busy = map[string]chan struct{}{}
	}
	f.busy[key] = done
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.busy, key)
		f.mu.Unlock()
		close(done)
	}()
	return work()
}
