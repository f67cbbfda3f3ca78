package worker

import (
	"context"
	"errors"
	"time"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/session"
)

const (
	// saveEvery is how often a session that changed is saved beside its use: what a killed worker loses at most, as long
	// as nothing runs.
	saveEvery = 30 * time.Second
	// looseEvery is how often it is saved beside what runs, which is stopped for it, and of which it may have half.
	looseEvery = 5 * time.Minute
	// saveShare bounds what saving costs: one part in so many of the time.
	saveShare = 20
)

// save takes a checkpoint beside the use of the session, if it may have changed, and tells when the next is due.
func (s *liveSession) save(due time.Time) time.Time {
	runs := s.gate.Running(session.Run) > 0
	s.mu.Lock()
	wanted := s.dirty && !runs || (s.loose || runs) && time.Since(due) >= looseEvery-saveEvery
	s.mu.Unlock()
	if !wanted || !s.gate.Saves() {
		return due
	}
	turn, cancel := context.WithTimeout(s.ctx, watchEvery)
	defer cancel()
	leave, err := s.gate.Ahead(turn, session.Save)
	if err != nil {
		return due
	}
	defer leave()
	ctx, cancel := context.WithTimeout(s.ctx, endLimit)
	defer cancel()
	began := time.Now()
	if _, err := s.checkpoint(ctx); err != nil && s.ctx.Err() == nil {
		s.w.log.Warn().Err(err).Str("session", s.id).Msg("save a session")
	}
	return time.Now().Add(max(saveEvery, saveShare*time.Since(began)))
}

// saveRunning takes a checkpoint while commands run that are about to be killed: the last one may never come, where one of
// them cannot be killed or this worker is.
func (s *liveSession) saveRunning(ctx context.Context) {
	if s.gate.Running(session.Run) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beforeEnd)
	defer cancel()
	leave, err := s.gate.Ahead(ctx, session.Save)
	if err == nil {
		defer leave()
		_, err = s.checkpoint(ctx)
	}
	if err != nil {
		s.w.log.Warn().Err(err).Str("session", s.id).Msg("save a session before what runs in it is killed")
	}
}

// checkpoint takes one, stored before it returns; the gate must be held for a Save, or alone. A session in which nothing can
// have changed since its last one gives that. What runs, commands and detached processes, is stopped meanwhile and goes on, and
// it is fuzzy; the last one of a session ends all that instead.
func (s *liveSession) checkpoint(ctx context.Context) (string, error) {
	live, err := s.box.sb.Detached(ctx)
	if err != nil {
		return "", err
	}
	live += s.gate.Running(session.Run)
	s.mu.Lock()
	last, changed, closing, cut := s.rec.Checkpoint, s.dirty || s.loose || live > 0, s.closing, s.cut
	s.mu.Unlock()
	if !changed && last != "" {
		return last, nil
	}
	want := checkpoint.Checkpoint{Phase: checkpoint.Session, Metadata: s.metadata(), Fuzzy: live > 0 || cut}
	var cp checkpoint.Checkpoint
	if live > 0 && !closing {
		cp, err = s.w.cps.Copy(ctx, s.box.sb, want)
	} else {
		live = 0
		cp, err = s.w.cps.CreateAs(ctx, events.NewID(), s.box.sb, want)
	}
	if err == nil {
		cp, err = s.w.cps.Store(ctx, cp.ID)
	}
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.rec.Checkpoint, s.rec.Fuzzy, s.dirty, s.loose = cp.ID, cp.Fuzzy, false, live > 0
	err = s.writeLocked(ctx)
	s.mu.Unlock()
	s.tell("checkpointed", &cp)
	return cp.ID, err
}

// lastCheckpoint takes the one to resume from, when what waits at the gate has given up.
func (s *liveSession) lastCheckpoint(ctx context.Context) error {
	leave, err := s.gate.Enter(ctx, session.Alone)
	switch {
	case err == nil:
		defer leave()
	case !errors.Is(err, session.ErrShut):
		return err
	}
	_, err = s.checkpoint(ctx) // a gate that was shut let nothing write
	return err
}
