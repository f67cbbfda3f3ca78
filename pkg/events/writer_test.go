package events_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// faultyLog loses answers: it stores the event whose number is in lose, and says that it doesn't know.
type faultyLog struct {
	events.Log
	appends int
	lose    map[int]bool // stored, answer lost
	drop    map[int]bool // not stored, answer lost
	before  map[int]func()
}

func (l *faultyLog) Append(ctx context.Context, ev events.Event, expect uint64) (uint64, error) {
	l.appends++
	n := l.appends
	if f := l.before[n]; f != nil {
		f()
	}
	if l.drop[n] {
		return 0, events.ErrUnknown
	}
	seq, err := l.Log.Append(ctx, ev, expect)
	if err == nil && l.lose[n] {
		return 0, events.ErrUnknown
	}
	return seq, err
}

func open(t *testing.T, log events.Log, id string) *events.Writer {
	t.Helper()
	w, err := events.OpenWriter(t.Context(), log, id, "/test")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// accepted returns the id of a plan that has been accepted.
func acceptedPlan(t *testing.T, log events.Log) string {
	t.Helper()
	id := events.NewID()
	d := events.Data{Steps: []string{"one", "two"}, Plan: &events.Fold{Name: "n", Apply: events.ApplyAuto, MaxAttempts: 3}}
	if err := open(t, log, id).Append(t.Context(), events.TypeAccepted, d); err != nil {
		t.Fatal(err)
	}
	return id
}

func types(t *testing.T, log events.Log, id string) string {
	t.Helper()
	records, err := log.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, r := range records {
		s = append(s, r.Event.Kind())
	}
	return strings.Join(s, " ")
}

// eachLog runs a test on both logs.
func eachLog(t *testing.T, f func(t *testing.T, log events.Log)) {
	t.Run("Memory", func(t *testing.T) { f(t, events.NewMemoryLog(subjects(t))) })
	t.Run("JetStream", func(t *testing.T) {
		js, s := fleet(t)
		f(t, events.NewLog(js, s))
	})
}

func TestWriter_ClaimAndFence(t *testing.T) {
	eachLog(t, func(t *testing.T, log events.Log) {
		ctx := t.Context()
		id := acceptedPlan(t, log)
		a, b := open(t, log, id), open(t, log, id)
		if err := a.Claim(ctx, events.Data{Worker: "a"}); err != nil {
			t.Fatal(err)
		}
		if err := b.Claim(ctx, events.Data{Worker: "b"}); !errors.Is(err, events.ErrFenced) {
			t.Fatalf("second claim from the same knowledge: %v, want %v", err, events.ErrFenced)
		}
		if err := a.Append(ctx, events.TypeStepStarted, events.Data{StepIndex: ptr(0), Step: "one"}); err != nil {
			t.Fatal(err)
		}
		taker := open(t, log, id)
		if err := taker.Claim(ctx, events.Data{Worker: "c"}); err != nil {
			t.Fatal(err)
		}
		// Case H3: the old owner writes nothing more.
		for _, typ := range []string{events.TypeStepFinished, events.TypeFailed, events.TypeCheckpointed} {
			err := a.Append(ctx, typ, events.Data{StepIndex: ptr(0), Checkpoint: &events.CheckpointRef{}})
			if !errors.Is(err, events.ErrFenced) {
				t.Errorf("old owner's %s: %v, want %v", typ, err, events.ErrFenced)
			}
		}
		if got, want := types(t, log, id), "accepted claimed step_started claimed"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		last, err := log.Last(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		d := last.Event.Data
		if d.Epoch != 2 || d.Attempt != 2 || d.Worker != "c" || d.Plan.Losses != 1 {
			t.Errorf("take-over event %+v, fold %+v", d, d.Plan)
		}
	})
}

func TestWriter_FoldsInWhatCameBetween(t *testing.T) {
	eachLog(t, func(t *testing.T, log events.Log) {
		ctx := t.Context()
		id := acceptedPlan(t, log)
		w, user := open(t, log, id), open(t, log, id)
		if err := w.Claim(ctx, events.Data{Worker: "a"}); err != nil {
			t.Fatal(err)
		}
		// The user's writer knows nothing of the claim; an actor without an epoch retries.
		if err := user.Append(ctx, events.TypeCancelRequested, events.Data{By: "me"}); err != nil {
			t.Fatal(err)
		}
		if err := w.Append(ctx, events.TypeStepStarted, events.Data{StepIndex: ptr(0)}); !errors.Is(err, events.ErrCancelRequested) {
			t.Fatalf("a step after a cancel: %v, want %v", err, events.ErrCancelRequested)
		}
		if err := w.Append(ctx, events.TypeCancelled, events.Data{}); err != nil {
			t.Fatal(err)
		}
		if err := user.Append(ctx, events.TypeCancelRequested, events.Data{}); !errors.Is(err, events.ErrFinal) {
			t.Errorf("cancel after the end: %v, want %v", err, events.ErrFinal)
		}
		if err := w.Append(ctx, events.TypeFailed, events.Data{}); !errors.Is(err, events.ErrFenced) {
			t.Errorf("holder after the end: %v, want %v", err, events.ErrFenced)
		}
		records, err := log.Events(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		finals := 0
		for _, r := range records {
			if r.Event.Data.Final {
				finals++
			}
		}
		if finals != 1 {
			t.Errorf("%d final events, want 1", finals)
		}
	})
}

func TestWriter_ClaimRetriesOverACancel(t *testing.T) {
	log := &faultyLog{Log: events.NewMemoryLog(subjects(t))}
	id := acceptedPlan(t, log)
	w := open(t, log, id)
	log.before = map[int]func(){2: func() {
		if err := open(t, log.Log, id).Append(t.Context(), events.TypeCancelRequested, events.Data{}); err != nil {
			t.Error(err)
		}
	}}
	if err := w.Claim(t.Context(), events.Data{Worker: "a"}); err != nil {
		t.Fatal(err)
	}
	if f := w.Fold(); !f.CancelRequested || f.Epoch != 1 || w.Epoch() != 1 {
		t.Errorf("fold %+v", f)
	}
}

// TestWriter_LostAnswers loses the answer of event i for every i, stored and not stored, and repeats the call.
func TestWriter_LostAnswers(t *testing.T) {
	const appends = 5
	for i := 1; i <= appends; i++ {
		for _, stored := range []bool{true, false} {
			log := &faultyLog{Log: events.NewMemoryLog(subjects(t)), lose: map[int]bool{i: stored}, drop: map[int]bool{i: !stored}}
			id := events.NewID()
			w := open(t, log, id)
			again := func(f func() error) {
				t.Helper()
				err := f()
				if errors.Is(err, events.ErrUnknown) {
					err = f()
				}
				if err != nil {
					t.Fatalf("lost %d, stored %v: %v", i, stored, err)
				}
			}
			fact := func(typ string, d events.Data) func() error {
				return func() error { return w.Append(t.Context(), typ, d) }
			}
			again(fact(events.TypeAccepted, events.Data{Plan: &events.Fold{Apply: events.ApplyNever}}))
			again(func() error { return w.Claim(t.Context(), events.Data{Worker: "a"}) })
			again(fact(events.TypeStepStarted, events.Data{StepIndex: ptr(0), Step: "one"}))
			again(fact(events.TypeStepFinished, events.Data{StepIndex: ptr(0), Step: "one"}))
			again(fact(events.TypeExecuted, events.Data{}))
			if got, want := types(t, log, id), "accepted claimed step_started step_finished executed"; got != want {
				t.Errorf("lost %d, stored %v: events %q, want %q", i, stored, got, want)
			}
		}
	}
}

// TestWriter_LostAnswerAndAnotherFact goes on with another fact; the open one is settled first.
func TestWriter_LostAnswerAndAnotherFact(t *testing.T) {
	log := &faultyLog{Log: events.NewMemoryLog(subjects(t)), lose: map[int]bool{3: true}}
	id := acceptedPlan(t, log)
	w := open(t, log, id)
	if err := w.Claim(t.Context(), events.Data{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), events.TypeStepStarted, events.Data{StepIndex: ptr(0)}); !errors.Is(err, events.ErrUnknown) {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), events.TypeFailed, events.Data{Error: "lost the server"}); err != nil {
		t.Fatal(err)
	}
	if got, want := types(t, log, id), "accepted claimed step_started failed"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestWriter_TwoGoroutines(t *testing.T) {
	eachLog(t, func(t *testing.T, log events.Log) {
		const each = 20
		ctx := t.Context()
		id := acceptedPlan(t, log)
		w := open(t, log, id)
		if err := w.Claim(ctx, events.Data{}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range each {
				if err := w.Append(ctx, events.TypeStepStarted, events.Data{StepIndex: &i}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for i := range each {
				c := &events.CheckpointRef{ID: events.NewID(), Phase: events.PhaseStep, Cursor: i, Portable: true}
				if err := w.Append(ctx, events.TypeCheckpointed, events.Data{Checkpoint: c}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		records, err := log.Events(ctx, id)
		if err != nil || len(records) != 2+2*each {
			t.Errorf("%d events, %v; want %d", len(records), err, 2+2*each)
		}
		if f := w.Fold(); f.Cursor != each-1 || f.Checkpoint.Cursor != each-1 {
			t.Errorf("fold %+v", f)
		}
	})
}

func TestWriter_ManyActorsOneFinal(t *testing.T) {
	eachLog(t, func(t *testing.T, log events.Log) {
		id := acceptedPlan(t, log)
		var wg sync.WaitGroup
		for _, typ := range []string{events.TypeCancelled, events.TypeExpired, events.TypeRejected, events.TypeDead, events.TypeCancelled} {
			w := open(t, log, id)
			wg.Go(func() {
				if err := w.Append(t.Context(), typ, events.Data{}); err != nil && !errors.Is(err, events.ErrFinal) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := strings.Fields(types(t, log, id)); len(got) != 2 {
			t.Errorf("events %q, want one after accepted", got)
		}
	})
}

// TestWriter_SmallPayload is case I3 with a server that allows 64 kB only.
func TestWriter_SmallPayload(t *testing.T) {
	js, s := fleet(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	log := events.NewLog(js, s)
	ctx := t.Context()
	big := events.NewID()
	err := open(t, log, big).Append(ctx, events.TypeAccepted, events.Data{Plan: &events.Fold{}, Body: []byte(`"` + strings.Repeat("x", 100<<10) + `"`)})
	if !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("body of 100 KiB: %v, want %v", err, events.ErrTooLarge)
	}
	for _, unit := range []string{"x", `"`, "\x01", "\xff"} {
		for _, size := range []int{60 << 10, 63 << 10, 64 << 10, 1 << 20, 5 << 20} {
			id := acceptedPlan(t, log)
			w := open(t, log, id)
			if err := w.Claim(ctx, events.Data{}); err != nil {
				t.Fatal(err)
			}
			if err := w.Append(ctx, events.TypeFailed, events.Data{Error: strings.Repeat(unit, size), ExitCode: ptr(3)}); err != nil {
				t.Fatalf("error text of %d times %q: %v", size, unit, err)
			}
			last, err := log.Last(ctx, id)
			if err != nil || !last.Event.Data.Final || last.Event.Data.Plan.State != events.StateFailed || *last.Event.Data.ExitCode != 3 {
				t.Errorf("last event %+v, %v", last.Event.Data, err)
			}
		}
	}
}

func TestOpenWriter_RefusesOtherIDs(t *testing.T) {
	for _, id := range []string{"", "*", ">", "01jd0000000000000000000000", events.NewID() + ".x"} {
		if _, err := events.OpenWriter(t.Context(), events.NewMemoryLog(subjects(t)), id, "/test"); !errors.Is(err, events.ErrID) {
			t.Errorf("id %q: %v, want %v", id, err, events.ErrID)
		}
	}
}
