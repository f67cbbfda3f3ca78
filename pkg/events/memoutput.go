package events

import (
	"context"
	"iter"
	"slices"
	"sync"
)

// MemoryOutput is an Output in the memory of one process.
type MemoryOutput struct {
	mu      sync.Mutex
	chunks  []Chunk
	keys    map[string]bool
	changed chan struct{}
}

// NewMemoryOutput returns an empty one.
func NewMemoryOutput() *MemoryOutput {
	return &MemoryOutput{keys: map[string]bool{}, changed: make(chan struct{})}
}

// Publish implements Output.
func (o *MemoryOutput) Publish(ctx context.Context, c Chunk) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys[c.key()] {
		return nil
	}
	o.keys[c.key()] = true
	c.Seq = uint64(len(o.chunks)) + 1
	c.Data = slices.Clone(c.Data)
	o.chunks = append(o.chunks, c)
	close(o.changed)
	o.changed = make(chan struct{})
	return nil
}

// Read implements Output.
func (o *MemoryOutput) Read(ctx context.Context, q OutputQuery) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		if _, err := ParseID(q.PlanID); err != nil {
			yield(Chunk{}, err)
			return
		}
		_, end, _ := o.at(0)
		for seq := max(q.From, 1); q.Follow || seq <= end; seq++ {
			c, last, changed := o.at(seq)
			for seq > last {
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
				c, last, changed = o.at(seq)
			}
			if c.PlanID == q.PlanID && (q.Step == nil || *q.Step == c.Step) && !yield(c, nil) {
				return
			}
		}
	}
}

// at returns the chunk of a sequence if there is one, the last sequence, and a channel that closes at the next write.
func (o *MemoryOutput) at(seq uint64) (Chunk, uint64, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := uint64(len(o.chunks))
	if seq == 0 || seq > last {
		return Chunk{}, last, o.changed
	}
	c := o.chunks[seq-1]
	c.Data = slices.Clone(c.Data)
	return c, last, o.changed
}
