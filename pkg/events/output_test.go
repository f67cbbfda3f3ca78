package events_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

func TestJetStreamOutput(t *testing.T) {
	eventstest.RunOutput(t, func(t *testing.T) events.Output {
		js, s := fleet(t)
		return events.NewOutput(js, s)
	})
}

func TestMemoryOutput(t *testing.T) {
	eventstest.RunOutput(t, func(t *testing.T) events.Output { return events.NewMemoryOutput() })
}

// kept returns what a reader sees, and how many bytes were dropped in the middle.
func kept(t *testing.T, o events.Output, id string) (head, tail []byte, dropped int64) {
	t.Helper()
	var at int64
	for _, c := range eventstest.ReadOutput(t, o, events.OutputQuery{PlanID: id}) {
		if c.Offset != at {
			t.Errorf("chunk at offset %d, want %d", c.Offset, at)
		}
		at += int64(len(c.Data)) + c.Dropped
		dropped += c.Dropped
		if dropped == 0 {
			head = append(head, c.Data...)
		} else {
			tail = append(tail, c.Data...)
		}
	}
	return head, tail, dropped
}

// TestOutputWriter is case F2: bytes are kept as they were, whatever the lines look like.
func TestOutputWriter(t *testing.T) {
	for name, text := range map[string]string{
		"Nothing":     "",
		"NoNewline":   "abc",
		"NewlineOnly": "\n",
		"LongLine":    strings.Repeat("x", 70000) + "\nlast",
		"NoText":      "\x00\xff\xfe\r\n\x1b[31m",
		"HeadExactly": strings.Repeat("h", 1<<20),
		"HeadAndTail": strings.Repeat("h", 1<<20) + strings.Repeat("t", 256<<10),
	} {
		t.Run(name, func(t *testing.T) {
			js, s := fleet(t)
			out := events.NewOutput(js, s)
			id := events.NewID()
			w := events.NewOutputWriter(out, events.OutputOptions{PlanID: id, Try: 1, Flush: time.Millisecond})
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, _, dropped := kept(t, out, id); string(got) != text || dropped != 0 {
				t.Errorf("%d bytes stored, %d dropped; want %d", len(got), dropped, len(text))
			}
			if _, err := w.Write([]byte("x")); err == nil {
				t.Error("write after close")
			}
		})
	}
}

func TestOutputWriter_KeepsHeadAndTail(t *testing.T) {
	for _, size := range []int{1, 7, 1000, 40000} {
		out := events.NewMemoryOutput()
		id := events.NewID()
		w := events.NewOutputWriter(out, events.OutputOptions{PlanID: id, Head: 100_000, Tail: 3000})
		var all []byte
		for i := 0; len(all) < 250_000; i++ {
			piece := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size)[:size]
			all = append(all, piece...)
			if _, err := w.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		head, tail, dropped := kept(t, out, id)
		if !bytes.Equal(head, all[:100_000]) || !bytes.Equal(tail, all[len(all)-3000:]) || int(dropped) != len(all)-103_000 {
			t.Errorf("pieces of %d: head %d, tail %d, dropped %d of %d", size, len(head), len(tail), dropped, len(all))
		}
	}
}

// stuckOutput does not answer until it is released.
type stuckOutput struct {
	events.Output
	release chan struct{}
}

func (o stuckOutput) Publish(ctx context.Context, c events.Chunk) error {
	select {
	case <-o.release:
		return o.Output.Publish(ctx, c)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestOutputWriter_StuckStoreNeverBlocksTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := stuckOutput{Output: events.NewMemoryOutput(), release: make(chan struct{})}
		id := events.NewID()
		w := events.NewOutputWriter(out, events.OutputOptions{PlanID: id})
		start := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 1000 {
					if _, err := w.Write(make([]byte, 10_000)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("writing waited %v for the store", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Close(ctx); err == nil || !errors.Is(err, context.Canceled) {
			t.Errorf("close without a store: %v", err)
		}
	})
}

func TestOutputWriter_RetriesWhatMayPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &flakyOutput{Output: events.NewMemoryOutput(), fail: 3}
		id := events.NewID()
		w := events.NewOutputWriter(out, events.OutputOptions{PlanID: id})
		if _, err := w.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := kept(t, out, id); string(got) != "hello" {
			t.Errorf("stored %q", got)
		}
	})
}

// flakyOutput stores, and loses the first answers.
type flakyOutput struct {
	events.Output
	fail int
}

func (o *flakyOutput) Publish(ctx context.Context, c events.Chunk) error {
	if err := o.Output.Publish(ctx, c); err != nil || o.fail == 0 {
		return err
	}
	o.fail--
	return nats.ErrTimeout
}
