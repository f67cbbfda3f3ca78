package scheduler

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// planSubmit publishes the submission as any service would, then waits for the verdict.
func (s *Scheduler) planSubmit(ctx context.Context, body []byte) (any, error) {
	id, sub, err := readSubmission(body)
	if err != nil {
		return nil, err
	}
	digest := bodyDigest(sub.Plan)
	if f, known := s.index.get(id); known {
		return verdictOf(id, f, digest)
	}
	if f, err := s.recorded(ctx, id); err != nil {
		return nil, err
	} else if f != nil {
		return verdictOf(id, *f, digest)
	}
	if err := s.fleet.Submissions.Publish(ctx, id, sub); err != nil {
		return nil, err
	}
	f, ok := s.index.await(ctx, id)
	if !ok {
		return nil, fail(api.CodeTimeout, "plan %s: stored, but no verdict yet: look again with plan show", id)
	}
	return verdictOf(id, f, digest)
}

func readSubmission(body []byte) (string, events.Submission, error) {
	var named struct {
		PlanID string `json:"plan_id"`
	}
	if err := json.Unmarshal(body, &named); err != nil {
		return "", events.Submission{}, fail(api.CodeInvalid, "request is not JSON: %v", err)
	}
	if named.PlanID == "" {
		named.PlanID = events.NewID()
	}
	id, err := events.ParseID(named.PlanID)
	if err != nil {
		return "", events.Submission{}, err
	}
	sub, err := events.DecodeSubmission(id, body)
	return id, sub, err
}

func verdictOf(id string, f events.Fold, digest string) (any, error) {
	if err := sameBody(id, f, digest); err != nil {
		return nil, err
	}
	return api.Submitted{ID: id, State: f.State, Code: f.Code, Error: f.Error}, nil
}

func (s *Scheduler) planGet(ctx context.Context, body []byte) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	records, err := s.fleet.Log.Events(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	v := events.BuildView(records)
	for i, c := range v.Checkpoints {
		if c.Portable {
			continue
		}
		// pre_execute becomes portable with its base, which no event says.
		if cp, err := checkpoint.Load(ctx, s.fleet.Checkpoints, c.ID); err == nil {
			v.Checkpoints[i].Portable = cp.Portable
		}
	}
	return v, nil
}

func (s *Scheduler) planList(context.Context, []byte) (any, error) {
	rows := []events.View{}
	for _, id := range s.index.ids() {
		if f, ok := s.index.get(id); ok {
			rows = append(rows, events.NewView(id, f))
		}
	}
	return rows, nil
}

func (s *Scheduler) planApprove(ctx context.Context, body []byte) (any, error) {
	return s.change(ctx, body, func(w *events.Writer, by string) error {
		return w.Append(ctx, events.TypeApproved, events.Data{By: by})
	})
}

func (s *Scheduler) planReject(ctx context.Context, body []byte) (any, error) {
	return s.change(ctx, body, func(w *events.Writer, by string) error {
		if st := w.Fold().State; st != events.StateAwaitingApproval {
			return fail(api.CodeConflict, "plan is %s: only one that awaits approval can be rejected; cancel it instead", st)
		}
		return w.Append(ctx, events.TypeRejected, events.Data{Code: "by_user", Reason: "by_user", By: by})
	})
}

// planCancel ends a plan that nobody holds at once; a worker that holds it is asked to.
func (s *Scheduler) planCancel(ctx context.Context, body []byte) (any, error) {
	return s.change(ctx, body, func(w *events.Writer, by string) error {
		for {
			if held, err := s.requestCancel(ctx, w, by); held || err != nil {
				return err
			}
			err := w.Append(ctx, events.TypeCancelled, events.Data{By: by})
			if !errors.Is(err, events.ErrFenced) {
				return err
			} // else claimed meanwhile
		}
	})
}

// requestCancel asks the worker that holds a plan to cancel it, and tells whether there is one.
// It may have let go of the plan (to wait for approval) before the request was stored.
func (s *Scheduler) requestCancel(ctx context.Context, w *events.Writer, by string) (held bool, err error) {
	f := w.Fold()
	if f.Held && !f.CancelRequested {
		if err := w.Append(ctx, events.TypeCancelRequested, events.Data{By: by}); err != nil {
			return false, err
		}
		f = w.Fold()
	}
	if !f.Held {
		return false, nil
	}
	id := w.PlanID()
	return true, s.fleet.Conn.Publish(s.fleet.Subjects.Control("cancel", id), []byte(id))
}

// change lets do append to a plan and replies with its state.
func (s *Scheduler) change(ctx context.Context, body []byte, do func(w *events.Writer, by string) error) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	w, err := events.OpenWriter(ctx, s.fleet.Log, req.ID, s.source())
	if err != nil {
		return nil, err
	}
	if w.Fold().State == "" {
		return nil, fail(api.CodeNotFound, "plan %s: not found", req.ID)
	}
	if err := do(w, req.By); err != nil {
		return nil, err
	}
	return api.Done{ID: req.ID, State: w.Fold().State}, nil
}
