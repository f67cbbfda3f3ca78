package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// outputGrace is how long the last bytes of a step may take to be shown after the plan ended.
const outputGrace = 300 * time.Millisecond

// follow shows a plan's progress and its steps' output on stderr until it is final or
// awaits approval, and returns that event.
func (a *app) follow(ctx context.Context, h *handle, id string) (events.Record, error) {
	showing, stop := context.WithCancel(ctx)
	var output sync.WaitGroup
	shown := newTally(a.stderr)
	output.Go(func() {
		for c, err := range h.fleet.Output.Read(showing, events.OutputQuery{PlanID: id, Follow: true}) {
			if err != nil {
				return
			}
			shown.chunk(c)
		}
	})
	last, err := h.Wait(ctx, id, func(r events.Record) bool {
		shown.event(r.Event)
		return r.Event.Kind() == events.TypeAwaitingApproval
	})
	if err == nil {
		shown.drain(ctx, h.fleet.Output, id)
		shown.end(last.Event)
	}
	stop()
	output.Wait()
	return last, err
}

// tally writes progress and output to one stream without tearing lines apart.
type tally struct {
	mu    sync.Mutex
	w     io.Writer
	seq   uint64 // of the last chunk shown
	fresh bool   // the stream stands at the start of a line
	moved chan struct{}
}

func newTally(w io.Writer) *tally { return &tally{w: w, fresh: true, moved: make(chan struct{}, 1)} }

func (t *tally) chunk(c events.Chunk) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.Dropped > 0 {
		t.line("[%d bytes left out]", c.Dropped)
	}
	if n := len(c.Data); n > 0 {
		t.w.Write(c.Data)
		t.fresh = c.Data[n-1] == '\n'
	}
	t.seq = c.Seq
	select {
	case t.moved <- struct{}{}:
	default:
	}
}

// drain waits until everything that is stored of the output was shown.
func (t *tally) drain(ctx context.Context, out events.Output, id string) {
	ctx, cancel := context.WithTimeout(ctx, outputGrace)
	defer cancel()
	var last uint64
	for c, err := range out.Read(ctx, events.OutputQuery{PlanID: id}) {
		if err != nil {
			return
		}
		last = c.Seq
	}
	for {
		t.mu.Lock()
		done := t.seq >= last
		t.mu.Unlock()
		if done {
			return
		}
		select {
		case <-t.moved:
		case <-ctx.Done():
			return
		}
	}
}

func (t *tally) line(format string, args ...any) {
	if !t.fresh {
		fmt.Fprintln(t.w)
	}
	fmt.Fprintf(t.w, format+"\n", args...)
	t.fresh = true
}

// event shows one event as one line, where people want to know of it.
func (t *tally) event(e events.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := e.Data
	switch e.Kind() {
	case events.TypeAccepted:
		t.line("plan %s accepted", e.Subject)
	case events.TypeWaiting:
		t.line("waiting: %s", d.Reason)
	case events.TypeClaimed:
		t.line("running on %s (attempt %d, %s, isolation %s)", d.Worker, d.Attempt, d.Source, d.Isolation)
		for _, n := range d.Notes {
			t.line("  %s", n)
		}
	case events.TypeStepStarted:
		t.line("step %s ...", d.Step)
	case events.TypeStepFinished:
		t.line("step %s %s%s", d.Step, stepEnd(d), took(d.DurationMS))
	case events.TypeCheckpointed:
		if d.Checkpoint != nil {
			t.line("checkpoint %s (%s, %d bytes stored)", d.Checkpoint.ID, d.Checkpoint.Phase, d.Checkpoint.SizeBytes)
		}
	case events.TypeRolledBack:
		t.line("rolled back: %s", d.Reason)
	case events.TypeInterrupted, events.TypeRetrying:
		t.line("interrupted: %s", d.Reason)
	case events.TypeCancelRequested:
		t.line("cancelling")
	}
}

func stepEnd(d events.Data) string {
	if d.State == events.StepSucceeded {
		return "ok"
	}
	return "failed: " + d.Error
}

func took(ms *int64) string {
	if ms == nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", time.Duration(*ms)*time.Millisecond)
}

// end shows how the plan ended, or that it waits for approval.
func (t *tally) end(e events.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := e.Data.Plan
	if f == nil {
		return
	}
	switch {
	case f.State == events.StateAwaitingApproval:
		t.line("plan %s is executed and awaits approval", e.Subject)
	case e.Data.Error != "":
		t.line("plan %s %s: %s", e.Subject, f.State, e.Data.Error)
	default:
		t.line("plan %s %s", e.Subject, f.State)
	}
	if e.Data.RolledBack != "" {
		t.line("rolled back the %s to its pre_execute checkpoint", e.Data.RolledBack)
	}
	for _, c := range e.Data.Conflicts {
		t.line("  conflict: %q: %s", c.Path, c.Kind)
	}
}

// conclude prints a plan that ended, or waits for approval, and returns its exit code.
func (a *app) conclude(ctx context.Context, h *handle, last events.Record) error {
	if err := a.show(ctx, h, last.Event.Subject); err != nil {
		return err
	}
	f := last.Event.Data.Plan
	if f == nil {
		return errors.New("plan ended without a state")
	}
	if code := outcomeExit(f.State, f.Code); code != exitOK {
		return &coded{code, nil}
	}
	return nil
}

// show prints a plan: its JSON, or for people what it changed.
func (a *app) show(ctx context.Context, h *handle, id string) error {
	v, err := h.Plan(ctx, id)
	if err != nil {
		return err
	}
	if a.format != "table" && a.format != "wide" {
		return a.printPlan(v)
	}
	if v.Changed == nil || *v.Changed == 0 {
		return nil
	}
	diff, err := h.Diff(ctx, id)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(a.stdout, diff)
	return err
}
