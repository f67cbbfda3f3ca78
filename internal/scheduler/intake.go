package scheduler

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// settleLimit bounds the wait for the server's answer to an ack: the client itself would wait
// for ever for one that was lost with its connection.
const settleLimit = 5 * time.Second

// errTaken: the id belongs to a plan with another body.
var errTaken = errors.New("id_taken")

// intake turns submissions into accepted or rejected plans until ctx ends.
func (s *Scheduler) intake(ctx context.Context) {
	for ctx.Err() == nil {
		got, err := s.fleet.Submissions.Pull(ctx, 64, s.pullWait)
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("pull submissions")
			sleep(ctx, time.Second)
		}
		for _, d := range got {
			s.receive(ctx, d)
		}
	}
}

// receive handles one submission and settles it; one that could not be handled comes again.
func (s *Scheduler) receive(ctx context.Context, d events.SubmissionDelivery) {
	id, err := d.PlanID()
	if err != nil {
		s.settle(ctx, func(ctx context.Context) error { return d.Term(ctx, err.Error()) })
		return
	}
	sub, err := d.Submission()
	if err == nil {
		err = s.admit(ctx, id, sub)
	} else {
		err = s.reject(ctx, id, "invalid_submission", err)
	}
	switch {
	case err == nil:
		s.settle(ctx, d.Ack)
	case errors.Is(err, errTaken):
		s.log.Warn().Str("plan", id).Msg("refused another plan under a taken id")
		s.settle(ctx, func(ctx context.Context) error { return d.Term(ctx, err.Error()) })
	default:
		s.log.Error().Err(err).Str("plan", id).Msg("take a submission in; it comes again")
		s.settle(ctx, func(ctx context.Context) error { return d.Nak(ctx, time.Second) })
	}
}

// settle ends a delivery. One that could not be settled comes again, and is found taken in.
func (s *Scheduler) settle(ctx context.Context, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := do(ctx); err != nil {
		s.log.Warn().Err(err).Msg("settle a submission")
	}
}

// admit appends accepted or rejected, unless the same plan was taken in before.
func (s *Scheduler) admit(ctx context.Context, id string, sub events.Submission) error {
	digest := bodyDigest(sub.Plan)
	w, err := events.OpenWriter(ctx, s.fleet.Log, id, s.source())
	if err != nil {
		return err
	}
	if f := w.Fold(); f.State != "" {
		return sameBody(id, f, digest)
	}
	if f, err := s.recorded(ctx, id); err != nil || f != nil {
		return errors.Join(err, sameBodyOf(id, f, digest))
	}
	p, err := validate(sub.Plan)
	if err != nil {
		return s.rejectWith(ctx, w, code(err), err)
	}
	resource, refused, err := s.resourceFor(ctx, p)
	if err != nil {
		return err
	}
	if refused != nil {
		return s.rejectWith(ctx, w, refused.code, refused)
	}
	now := time.Now().UTC()
	err = w.Append(ctx, events.TypeAccepted, events.Data{
		Body: sub.Plan, Steps: stepIDs(p), By: sub.RequestedBy, RetryOf: sub.RetryOf,
		Plan: &events.Fold{
			Name: p.Name, Strategy: string(p.Strategy), Apply: string(p.Apply), Resource: resource, Pool: p.Pool,
			Class: string(p.Class), Key: p.Key, MaxAttempts: p.MaxAttempts, Created: now,
			ExpiresAt: now.Add(time.Duration(p.ExpiresIn)), BodyDigest: digest,
		},
	})
	if errors.Is(err, events.ErrTransition) || errors.Is(err, events.ErrFinal) {
		return sameBody(id, w.Fold(), digest) // another scheduler was first
	}
	return err
}

// validate is everything the scheduler asks of a plan before it is accepted.
func validate(body []byte) (*plan.Plan, error) {
	p, err := plan.ParseJSON(body, plan.Submitted())
	if err != nil {
		return nil, err
	}
	p.Defaults()
	if missing := p.Unsupported(); len(missing) > 0 {
		return nil, &unsupported{missing}
	}
	return p, p.Bind(nil)
}

// unsupported is a plan that uses what this version does not do: refused, never ignored.
type unsupported struct{ fields []string }

func (u *unsupported) Error() string {
	var b bytes.Buffer
	for i, f := range u.fields {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(f)
	}
	return b.String()
}

func code(err error) string {
	var u *unsupported
	if errors.As(err, &u) {
		return "unsupported"
	}
	return "invalid_plan"
}

func (s *Scheduler) reject(ctx context.Context, id, code string, cause error) error {
	w, err := events.OpenWriter(ctx, s.fleet.Log, id, s.source())
	if err != nil {
		return err
	}
	if w.Fold().State != "" {
		return errTaken
	}
	return s.rejectWith(ctx, w, code, cause)
}

func (s *Scheduler) rejectWith(ctx context.Context, w *events.Writer, code string, cause error) error {
	err := w.Append(ctx, events.TypeRejected, events.Data{Code: code, Error: cause.Error()})
	if errors.Is(err, events.ErrFinal) {
		return nil
	}
	return err
}

// recorded looks a plan up whose events are gone: its final state is kept longer.
func (s *Scheduler) recorded(ctx context.Context, id string) (*events.Fold, error) {
	return readFold(ctx, s.fleet.Plans, id)
}

func sameBodyOf(id string, f *events.Fold, digest string) error {
	if f == nil {
		return nil
	}
	return sameBody(id, *f, digest)
}

// sameBody is nil if the plan known under an id has this body: then it is the same plan.
func sameBody(id string, f events.Fold, digest string) error {
	if f.BodyDigest == digest || f.BodyDigest == "" && f.State == events.StateRejected {
		return nil
	}
	return fmt.Errorf("plan %s exists with another body: use another id: %w", id, errTaken)
}

// bodyDigest names a plan's body however its JSON is laid out.
func bodyDigest(body []byte) string {
	var compact bytes.Buffer
	if err := json.Compact(&compact, body); err != nil {
		compact.Write(body) // it will be rejected, and is the same rejection again
	}
	sum := sha256.Sum256(compact.Bytes())
	return "sha256:" + hex.EncodeToString(sum[:])
}

func stepIDs(p *plan.Plan) []string {
	ids := make([]string, len(p.Steps))
	for i, st := range p.Steps {
		ids[i] = st.ID
	}
	return ids
}

func resourceOf(p *plan.Plan) events.Resource {
	if p.Resource == nil {
		return events.Resource{}
	}
	return events.Resource{Path: p.Resource.Path, Host: p.Resource.Host, Repo: p.Resource.Repo, Ref: p.Resource.Ref}
}
