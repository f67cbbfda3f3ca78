package kv

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

var keyForm = regexp.MustCompile(`^[-/_=.a-zA-Z0-9]+$`)

// Memory is a Store in the memory of one process.
type Memory struct {
	ttl time.Duration

	mu       sync.Mutex
	rev      uint64
	entries  map[string]Entry
	timers   map[string]*time.Timer
	watchers map[*watcher]bool
}

// NewMemory returns an empty bucket whose records stay.
func NewMemory() *Memory { return NewMemoryTTL(0) }

// NewMemoryTTL returns an empty bucket whose records are gone a time after their last write; 0: never.
func NewMemoryTTL(ttl time.Duration) *Memory {
	return &Memory{ttl: ttl, entries: map[string]Entry{}, timers: map[string]*time.Timer{}, watchers: map[*watcher]bool{}}
}

// Create implements Bucket.
func (m *Memory) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	return m.write(ctx, "create", key, value, func(_ Entry, ok bool) error { return failIf(ok, ErrExists) })
}

// Update implements Bucket.
func (m *Memory) Update(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	return m.write(ctx, "update", key, value, func(e Entry, _ bool) error { return failIf(e.Revision != rev, ErrConflict) })
}

// Put implements Bucket.
func (m *Memory) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	return m.write(ctx, "put", key, value, func(Entry, bool) error { return nil })
}

func failIf(bad bool, err error) error {
	if bad {
		return err
	}
	return nil
}

// write stores a record if allowed says so of what is there.
func (m *Memory) write(ctx context.Context, verb, key string, value []byte, allowed func(Entry, bool) error) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := check(ctx, key)
	if err == nil {
		e, ok := m.entries[key]
		err = allowed(e, ok)
	}
	if err != nil {
		return 0, fmt.Errorf("kv: %s %q: %w", verb, key, err)
	}
	m.rev++
	e := Entry{Key: key, Value: slices.Clone(value), Revision: m.rev, Created: time.Now()}
	m.entries[key] = e
	m.expire(key)
	m.tell(e)
	return m.rev, nil
}

func check(ctx context.Context, key string) error {
	if !keyForm.MatchString(key) || strings.HasPrefix(key, ".") || strings.HasSuffix(key, ".") {
		return ErrKey
	}
	return ctx.Err()
}

// expire starts the time to live of a key anew.
func (m *Memory) expire(key string) {
	if m.ttl == 0 {
		return
	}
	if t := m.timers[key]; t != nil {
		t.Stop()
	}
	rev := m.entries[key].Revision
	m.timers[key] = time.AfterFunc(m.ttl, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.entries[key].Revision == rev {
			m.remove(key)
		}
	})
}

func (m *Memory) remove(key string) {
	if t := m.timers[key]; t != nil {
		t.Stop()
		delete(m.timers, key)
	}
	delete(m.entries, key)
	m.rev++
	m.tell(Entry{Key: key, Revision: m.rev, Created: time.Now(), Deleted: true})
}

// Get implements Bucket.
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	err := check(ctx, key)
	if err == nil && !ok {
		err = ErrNotFound
	}
	if err != nil {
		return Entry{}, fmt.Errorf("kv: get %q: %w", key, err)
	}
	e.Value = slices.Clone(e.Value)
	return e, nil
}

// Delete implements Bucket.
func (m *Memory) Delete(ctx context.Context, key string, rev uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	err := check(ctx, key)
	if err == nil && rev != 0 && e.Revision != rev {
		err = ErrConflict
	}
	if err != nil {
		return fmt.Errorf("kv: delete %q: %w", key, err)
	}
	if ok {
		m.remove(key)
	}
	return nil
}

// List implements Scanner.
func (m *Memory) List(_ context.Context, prefix string) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Entry
	for _, key := range slices.Sorted(maps.Keys(m.entries)) {
		if strings.HasPrefix(key, prefix) {
			e := m.entries[key]
			e.Value = slices.Clone(e.Value)
			all = append(all, e)
		}
	}
	return all, nil
}

// watcher holds what a slow reader of Watch has not taken yet.
type watcher struct {
	queue []Entry
	some  chan struct{}
}

// tell gives a change to every watcher.
func (m *Memory) tell(e Entry) {
	for w := range m.watchers {
		w.add(e)
	}
}

func (w *watcher) add(e Entry) {
	w.queue = append(w.queue, e)
	select {
	case w.some <- struct{}{}:
	default:
	}
}

// Watch implements Scanner.
func (m *Memory) Watch(ctx context.Context) (<-chan Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &watcher{some: make(chan struct{}, 1)}
	for _, e := range slices.SortedFunc(maps.Values(m.entries), func(a, b Entry) int { return int(a.Revision) - int(b.Revision) }) {
		w.add(e)
	}
	w.add(Entry{})
	m.watchers[w] = true
	out := make(chan Entry)
	go m.deliver(ctx, w, out)
	return out, nil
}

func (m *Memory) deliver(ctx context.Context, w *watcher, out chan<- Entry) {
	defer close(out)
	defer m.forget(w)
	for {
		select {
		case <-w.some:
		case <-ctx.Done():
			return
		}
		for _, e := range m.take(w) {
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (m *Memory) take(w *watcher) []Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	queue := w.queue
	w.queue = nil
	return queue
}

func (m *Memory) forget(w *watcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.watchers, w)
}
