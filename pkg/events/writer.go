package events

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Writer appends the events of one plan for one actor and keeps the plan's state. An actor that called
// Claim is the holder of an epoch, others (approve, cancel, expire, ...) have none. Safe for concurrent use:
// appends happen one after the other.
type Writer struct {
	log    Log
	planID string
	source string

	turn  chan struct{} // holds one token; taking it is the lock, so that waiting ends with the context
	epoch uint64        // 0 until Claim
	fold  Fold
	seq   uint64
	// open is the event whose outcome is unknown; the same fact given again goes on with its id.
	open *Event
}

// OpenWriter reads the plan's last event. A plan without events has the zero Fold: only accepted or
// rejected can follow.
func OpenWriter(ctx context.Context, log Log, planID, source string) (*Writer, error) {
	if _, err := ParseID(planID); err != nil {
		return nil, err
	}
	w := &Writer{log: log, planID: planID, source: source, turn: make(chan struct{}, 1)}
	if _, err := w.reload(ctx); err != nil {
		return nil, err
	}
	w.turn <- struct{}{}
	return w, nil
}

// Fold returns the plan's state as far as this writer knows it. It waits for an append in progress.
func (w *Writer) Fold() Fold {
	<-w.turn
	defer w.release()
	return w.fold
}

// Epoch returns the epoch this writer claimed, 0 if none.
func (w *Writer) Epoch() uint64 {
	<-w.turn
	defer w.release()
	return w.epoch
}

// Refresh reads the plan's last event again and returns its state.
func (w *Writer) Refresh(ctx context.Context) (Fold, error) {
	if err := w.take(ctx); err != nil {
		return Fold{}, err
	}
	defer w.release()
	_, err := w.reload(ctx)
	return w.fold, err
}

// Claim takes the plan: it appends claimed with the next epoch, and this writer holds that epoch from
// then on. Epoch and Attempt of d are set here. Errors: ErrFenced when another claim came first,
// ErrFinal, ErrTransition (as while it awaits approval), those of Log.Append.
func (w *Writer) Claim(ctx context.Context, d Data) error {
	if err := w.take(ctx); err != nil {
		return err
	}
	defer w.release()
	d.Epoch = w.fold.Epoch + 1
	d.Attempt = w.fold.Attempt
	if !w.fold.Executed {
		d.Attempt++
	}
	before := w.fold.Epoch
	err := w.append(ctx, TypeClaimed, d, func() error {
		if w.fold.Epoch > before {
			return fmt.Errorf("epoch %d was claimed by %q: %w", w.fold.Epoch, w.fold.Worker, ErrFenced)
		}
		return nil
	})
	if err == nil {
		w.epoch = d.Epoch
	}
	return err
}

// Append appends a fact. When another event came first, the holder of an epoch folds it in and tries
// again as long as the epoch is still its own and the plan not final, else it is ErrFenced; an actor without
// an epoch tries again unless the plan is final (ErrFinal). A fact that no longer fits is ErrTransition or
// ErrCancelRequested. After ErrUnknown the same fact may be given again: it is stored once.
func (w *Writer) Append(ctx context.Context, typ string, d Data) error {
	if err := w.take(ctx); err != nil {
		return err
	}
	defer w.release()
	d.Epoch = w.epoch
	if w.epoch != 0 {
		d.Attempt = w.fold.Attempt
		d.Worker = w.fold.Worker
	}
	return w.append(ctx, typ, d, w.mine)
}

// mine tells whether this writer may still change the plan.
func (w *Writer) mine() error {
	if w.epoch == 0 || fault.Off("events.epoch") {
		return nil // Fold.Next knows what anyone may do
	}
	if w.fold.Epoch != w.epoch {
		return fmt.Errorf("epoch %d, the plan is at epoch %d of %q: %w", w.epoch, w.fold.Epoch, w.fold.Worker, ErrFenced)
	}
	if w.fold.Final() {
		return fmt.Errorf("the plan is %s: %w", w.fold.State, ErrFenced)
	}
	return nil
}

// append tries until the event is stored or cannot be. The turn is held.
func (w *Writer) append(ctx context.Context, typ string, d Data, allowed func() error) error {
	id, stored, err := w.resume(ctx, typ, d)
	for err == nil && !stored {
		if err = allowed(); err != nil {
			break
		}
		stored, err = w.try(ctx, id, typ, d)
	}
	if err != nil {
		return fmt.Errorf("events: append %s to plan %q: %w", typ, w.planID, err)
	}
	return nil
}

// try makes one attempt. Neither stored nor an error means: another event came first and is folded in.
func (w *Writer) try(ctx context.Context, id, typ string, d Data) (stored bool, err error) {
	next, err := w.fold.Next(typ, d)
	if errors.Is(err, ErrTransition) {
		// Maybe this writer only knows an old state: the refusal has to come from the present one.
		return w.overtaken(ctx, id, err)
	}
	if err != nil {
		return false, err
	}
	d.Final = next.Final() && !w.fold.Final()
	d.Plan = &next
	ev := NewEvent(TypeOf(NounPlan, typ), w.planID, w.source, d)
	ev.ID = id
	fault.AtEach("event.before", typ)
	seq, err := w.log.Append(ctx, ev, w.seq)
	fault.AtEach("event.after", typ)
	switch {
	case err == nil:
		w.fold, w.seq, w.open = next, seq, nil
		return true, nil
	case errors.Is(err, ErrSequence):
		return w.overtaken(ctx, id, err)
	case errors.Is(err, ErrUnknown):
		w.open = &ev
	}
	return false, err
}

// overtaken folds in what came first. It tells whether that was this very event, written before its answer was lost.
func (w *Writer) overtaken(ctx context.Context, id string, cause error) (stored bool, err error) {
	before := w.seq
	last, err := w.reload(ctx)
	if err != nil {
		return false, err
	}
	if last == id {
		w.open = nil
		return true, nil
	}
	if w.seq == before {
		return false, cause
	}
	return false, nil
}

// resume settles an event of unknown outcome before anything else is written. If the fact is the same, its id
// is used again and stored says that it had arrived.
func (w *Writer) resume(ctx context.Context, typ string, d Data) (id string, stored bool, err error) {
	open := w.open
	if open == nil {
		return NewID(), false, nil
	}
	same := open.Kind() == typ && open.Data.Step == d.Step && open.Data.Try == d.Try
	records, err := w.log.Events(ctx, w.planID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return "", false, err
	}
	for _, r := range records {
		w.learn(r)
		stored = stored || r.Event.ID == open.ID
	}
	if !same {
		w.open = nil
		return NewID(), false, nil
	}
	if stored {
		w.open = nil
	}
	return open.ID, stored, nil
}

// reload reads the last event and returns its id, "" when there is none.
func (w *Writer) reload(ctx context.Context) (string, error) {
	r, err := w.log.Last(ctx, w.planID)
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if r.Event.Data.Plan == nil {
		return "", fmt.Errorf("events: read plan %q: event %q has no state: %w", w.planID, r.Event.ID, ErrMalformed)
	}
	w.learn(r)
	return r.Event.ID, nil
}

func (w *Writer) learn(r Record) {
	if r.Event.Data.Plan != nil && r.Seq > w.seq {
		w.fold, w.seq = *r.Event.Data.Plan, r.Seq
	}
}

func (w *Writer) take(ctx context.Context) error {
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *Writer) release() { w.turn <- struct{}{} }
