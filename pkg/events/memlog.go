package events

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// memoryLimit is the payload limit of the in-memory implementations: a server's default max_payload less our headers.
const memoryLimit = 1<<20 - headerRoom

// MemoryLog is a Log in the memory of one process.
type MemoryLog struct {
	subjects Subjects

	mu      sync.Mutex
	stored  []memoryEvent // index + 1 is the sequence
	last    map[string]uint64
	byID    map[string]uint64
	changed chan struct{} // closed and replaced at each write
}

type memoryEvent struct {
	subject string
	plan    string // "" for events of other nouns
	data    []byte
}

// NewMemoryLog returns an empty log.
func NewMemoryLog(s Subjects) *MemoryLog {
	return &MemoryLog{subjects: s, last: map[string]uint64{}, byID: map[string]uint64{}, changed: make(chan struct{})}
}

// Append implements Log.
func (l *MemoryLog) Append(ctx context.Context, ev Event, expect uint64) (uint64, error) {
	data, err := EncodeEvent(ev, memoryLimit)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("events: append %s to plan %q: %w", ev.Kind(), ev.Subject, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq, ok := l.byID[ev.ID]; ok {
		return seq, nil
	}
	if l.last[ev.Subject] != expect {
		return 0, fmt.Errorf("events: append %s to plan %q after sequence %d: %w", ev.Kind(), ev.Subject, expect, ErrSequence)
	}
	return l.store(ev, ev.Subject, data), nil
}

// Publish implements Log.
func (l *MemoryLog) Publish(_ context.Context, ev Event) error {
	if err := checkFree(ev); err != nil {
		return err
	}
	data, err := EncodeEvent(ev, memoryLimit)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.byID[ev.ID]; !ok {
		l.store(ev, "", data)
	}
	return nil
}

func (l *MemoryLog) store(ev Event, plan string, data []byte) uint64 {
	l.stored = append(l.stored, memoryEvent{subject: l.subjects.Event(ev.Noun(), ev.Subject, ev.Kind()), plan: plan, data: data})
	seq := uint64(len(l.stored))
	l.byID[ev.ID] = seq
	if plan != "" {
		l.last[plan] = seq
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return seq
}

// Last implements Log.
func (l *MemoryLog) Last(_ context.Context, planID string) (Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq, ok := l.last[planID]
	if !ok {
		return Record{}, fmt.Errorf("events: read last event of plan %q: %w", planID, ErrNotFound)
	}
	return l.record(seq)
}

// Events implements Log.
func (l *MemoryLog) Events(_ context.Context, planID string) ([]Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var records []Record
	for i, m := range l.stored {
		if m.plan != planID {
			continue
		}
		r, err := l.record(uint64(i) + 1)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("events: read events of plan %q: %w", planID, ErrNotFound)
	}
	return records, nil
}

func (l *MemoryLog) record(seq uint64) (Record, error) {
	ev, err := DecodeEvent(l.stored[seq-1].data)
	return Record{Event: ev, Seq: seq}, err
}

// Follow implements Log.
func (l *MemoryLog) Follow(ctx context.Context, f Filter) (<-chan Record, error) {
	l.mu.Lock()
	mark := uint64(len(l.stored))
	l.mu.Unlock()
	out := make(chan Record)
	go l.follow(ctx, f, mark, out)
	return out, nil
}

func (l *MemoryLog) follow(ctx context.Context, f Filter, mark uint64, out chan<- Record) {
	defer close(out)
	filter := f.subject(l.subjects)
	for seq := max(f.From, 1); ; {
		if f.Mark && seq > mark {
			f.Mark = false
			if !send(ctx, out, Record{}) {
				return
			}
		}
		r, ok, changed := l.at(seq, filter)
		if changed != nil {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			continue
		}
		if ok && !send(ctx, out, r) {
			return
		}
		seq++
	}
}

// at returns the record of a sequence and whether it matches; a channel instead when there is none yet.
func (l *MemoryLog) at(seq uint64, filter string) (r Record, ok bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > uint64(len(l.stored)) {
		return Record{}, false, l.changed
	}
	if !matches(filter, l.stored[seq-1].subject) {
		return Record{}, false, nil
	}
	r, err := l.record(seq)
	return r, err == nil, nil
}

func send[T any](ctx context.Context, out chan<- T, v T) bool {
	select {
	case out <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

// matches tells whether a subject matches a NATS filter with * and >.
func matches(filter, subject string) bool {
	want, have := strings.Split(filter, "."), strings.Split(subject, ".")
	for i, w := range want {
		if w == ">" {
			return len(have) > i
		}
		if i >= len(have) || w != "*" && w != have[i] {
			return false
		}
	}
	return len(want) == len(have)
}
