package eventstest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// RunOutput is the conformance suite of events.Output. Each call of open returns an empty one.
func RunOutput(t *testing.T, open func(t *testing.T) events.Output) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, events.Output)
	}{
		{"BytesAsTheyWere", outputBytes},
		{"SameChunkIsStoredOnce", outputOnce},
		{"StepsAndPlansAreApart", outputApart},
		{"ReadFrom", outputFrom},
		{"Follow", outputFollow},
		{"Refuses", outputRefuses},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

func publishChunk(t *testing.T, o events.Output, c events.Chunk) {
	t.Helper()
	must(t, o.Publish(t.Context(), c))
}

// ReadOutput returns the chunks that a query selects.
func ReadOutput(t *testing.T, o events.Output, q events.OutputQuery) []events.Chunk {
	t.Helper()
	var got []events.Chunk
	for c, err := range o.Read(t.Context(), q) {
		must(t, err)
		got = append(got, c)
	}
	return got
}

func outputBytes(t *testing.T, o events.Output) {
	id := events.NewID()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	want := []events.Chunk{
		{PlanID: id, Step: 3, Epoch: 2, Try: 1, Data: all},
		{PlanID: id, Step: 3, Epoch: 2, Try: 1, Offset: 256, Data: []byte("\n")},
		{PlanID: id, Step: 3, Epoch: 2, Try: 1, Offset: 257, Dropped: 1 << 40},
		{PlanID: id, Step: 3, Epoch: 2, Try: 2, Data: []byte("no newline")},
	}
	for _, c := range want {
		publishChunk(t, o, c)
	}
	got := ReadOutput(t, o, events.OutputQuery{PlanID: id})
	var last uint64
	for i := range got {
		if got[i].Seq <= last {
			t.Errorf("sequence %d after %d", got[i].Seq, last)
		}
		last, got[i].Seq = got[i].Seq, 0
		if len(got[i].Data) == 0 {
			got[i].Data = nil
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
}

func outputOnce(t *testing.T, o events.Output) {
	c := events.Chunk{PlanID: events.NewID(), Data: []byte("x")}
	publishChunk(t, o, c)
	publishChunk(t, o, c)
	if got := ReadOutput(t, o, events.OutputQuery{PlanID: c.PlanID}); len(got) != 1 {
		t.Errorf("%d chunks, want 1", len(got))
	}
}

func outputApart(t *testing.T, o events.Output) {
	a, b := events.NewID(), events.NewID()
	for _, c := range []events.Chunk{
		{PlanID: a, Step: 0, Data: []byte("a0")},
		{PlanID: b, Step: 0, Data: []byte("b0")},
		{PlanID: a, Step: 1, Data: []byte("a1")},
		{PlanID: a, Step: 10, Data: []byte("a10")},
	} {
		publishChunk(t, o, c)
	}
	text := func(q events.OutputQuery) string {
		var s bytes.Buffer
		for _, c := range ReadOutput(t, o, q) {
			s.Write(c.Data)
		}
		return s.String()
	}
	step := 1
	for want, q := range map[string]events.OutputQuery{
		"a0a1a10": {PlanID: a},
		"a1":      {PlanID: a, Step: &step},
		"b0":      {PlanID: b},
		"":        {PlanID: events.NewID()},
	} {
		if got := text(q); got != want {
			t.Errorf("read %q, want %q", got, want)
		}
	}
}

func outputFrom(t *testing.T, o events.Output) {
	id := events.NewID()
	for i := range 3 {
		publishChunk(t, o, events.Chunk{PlanID: id, Offset: int64(i), Data: []byte{byte('a' + i)}})
	}
	all := ReadOutput(t, o, events.OutputQuery{PlanID: id})
	got := ReadOutput(t, o, events.OutputQuery{PlanID: id, From: all[0].Seq + 1})
	if diff := cmp.Diff(all[1:], got); diff != "" {
		t.Errorf("resumed (-want +got):\n%s", diff)
	}
	if got := ReadOutput(t, o, events.OutputQuery{PlanID: id, From: all[2].Seq + 1}); len(got) != 0 {
		t.Errorf("resumed at the end: %v", got)
	}
}

func outputFollow(t *testing.T, o events.Output) {
	id := events.NewID()
	publishChunk(t, o, events.Chunk{PlanID: id, Data: []byte("old ")})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []byte
	for c, err := range o.Read(ctx, events.OutputQuery{PlanID: id, Follow: true}) {
		must(t, err)
		got = append(got, c.Data...)
		if len(got) == 4 {
			publishChunk(t, o, events.Chunk{PlanID: id, Offset: 4, Data: []byte("new")})
		}
		if len(got) >= 7 {
			cancel()
		}
	}
	if string(got) != "old new" {
		t.Errorf("followed %q", got)
	}
	for range o.Read(t.Context(), events.OutputQuery{PlanID: id, Follow: true}) {
		break // a reader may stop at any time
	}
}

func outputRefuses(t *testing.T, o events.Output) {
	if err := o.Publish(t.Context(), events.Chunk{PlanID: ">", Data: []byte("x")}); !errors.Is(err, events.ErrID) {
		t.Errorf("bad plan id: %v, want %v", err, events.ErrID)
	}
	big := events.Chunk{PlanID: events.NewID(), Data: make([]byte, events.ChunkSize+1)}
	if err := o.Publish(t.Context(), big); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("large chunk: %v, want %v", err, events.ErrTooLarge)
	}
	for _, err := range o.Read(t.Context(), events.OutputQuery{PlanID: "*"}) {
		if !errors.Is(err, events.ErrID) {
			t.Errorf("read of a bad plan id: %v, want %v", err, events.ErrID)
		}
	}
}
