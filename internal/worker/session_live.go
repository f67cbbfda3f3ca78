package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/session"
)

const (
	// watchEvery is how often a session looks at its clock, and at whether its record has to be renewed.
	watchEvery = time.Second
	// freshLimit bounds how long writes and commands wait for the sandbox to be brought to the remote's tip.
	freshLimit = 2 * time.Minute
	// endLimit bounds the last checkpoint and the last record.
	endLimit = 5 * time.Minute
	// beforeEnd bounds the checkpoint that is taken before commands are killed for the end.
	beforeEnd = time.Minute
	// usedEvery is how often a use is written down.
	usedEvery = 15 * time.Second
)

// liveSession is a session that this worker has.
type liveSession struct {
	w    *Worker
	id   string
	gate session.Gate
	box  sessionBox
	// ctx ends with the session, and what runs in it with ctx.
	ctx   context.Context
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // what ends with ctx
	calls sync.WaitGroup // requests under way
	sub   *nats.Subscription
	ended chan struct{} // closed when nothing of it is left
	once  sync.Once

	mu       sync.Mutex
	rec      events.Session
	rev      uint64
	identity session.Identity
	timeouts session.Timeouts
	dirty    bool // a call may have changed something since the last checkpoint
	loose    bool // something ran beside the last checkpoint
	cut      bool // commands were ended by the end of the session
	closing  bool // no more than the last checkpoint is taken
	noted    time.Time
	uploads  map[string]*upload
	flows    map[string]*stream // of commands whose readers say how far they are
	last     error              // why its last checkpoint could not be taken
}

func newLiveSession(w *Worker, id string) *liveSession {
	s := &liveSession{w: w, id: id, ended: make(chan struct{}), uploads: map[string]*upload{}, flows: map[string]*stream{}}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

func (s *liveSession) record() events.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

// freshen brings the sandbox to the remote's tip and then lets writes and commands through, or fails them with the reason.
func (s *liveSession) freshen(fresh func(context.Context) (tip, error)) {
	if fresh == nil {
		s.gate.Open()
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, freshLimit)
	defer cancel()
	at, err := fresh(ctx)
	if err == nil {
		s.w.cps.Adopt(s.box.sb, at.baseLayers)
	} else if undone := s.unsync(); undone != nil {
		err = errors.Join(err, undone)
	}
	s.mu.Lock()
	s.rec.Syncing = false
	if err != nil {
		s.rec.Error, s.rec.Code = err.Error(), "sync_failed"
	} else {
		s.rec.Commit = at.commit
	}
	wrote := s.writeLocked(ctx)
	s.mu.Unlock()
	if wrote != nil {
		s.w.log.Warn().Err(wrote).Str("session", s.id).Msg("write down how a session was brought up to date")
	}
	if err != nil {
		s.gate.Shut(fmt.Errorf("session %s: could not be brought up to date: %w", s.id, err))
		return
	}
	s.gate.Open()
}

// unsync takes back what an update that failed may have left half done.
func (s *liveSession) unsync() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), settleLimit)
	defer cancel()
	return s.box.sb.Reset(ctx, s.box.sb.Chain())
}

// watch ends the session when its time is over, and saves it now and then, until it ends.
func (s *liveSession) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	due := time.Now().Add(saveEvery)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.box.sb.Done():
			go s.fail(refuse("sandbox_lost", "session %s: its sandbox died: resume it from its last checkpoint", s.id))
			return
		case <-tick.C:
		}
		if !time.Now().Before(s.record().ExpiresAt) && (s.gate.Idle() || time.Since(s.record().CreatedAt) >= s.timeouts.Absolute) {
			go s.finish(events.SessionExpired, "expired", "unused for its idle timeout, or older than its timeout: resume it from its last checkpoint")
			return
		}
		if !time.Now().Before(due) {
			due = s.save(due)
		}
		s.note()
		s.mu.Lock()
		s.dropIdleUploads()
		s.mu.Unlock()
	}
}

// note writes down when the session was used, and where it can be resumed from.
func (s *liveSession) note() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.noted) < usedEvery {
		return
	}
	s.noted = time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, settleLimit)
	defer cancel()
	err := s.writeLocked(ctx)
	if errors.Is(err, kv.ErrConflict) { // another worker has it: nothing more is written here
		go s.drop(err)
	}
}

// used extends the session; changes says that its files may have changed.
func (s *liveSession) used(changes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	s.rec.UsedAt, s.rec.ExpiresAt = now, s.timeouts.Expires(s.rec.CreatedAt, now)
	since := max(now.Sub(s.rec.CreatedAt).Milliseconds(), 1)
	switch {
	case changes:
		s.dirty = true
		if s.rec.FirstWriteMS == 0 {
			s.rec.FirstWriteMS = since
		}
	case s.rec.FirstReadMS == 0:
		s.rec.FirstReadMS = since
	}
}

// finish ends the session with a checkpoint to resume from, and returns that once nothing is left of it. Ending twice is once.
func (s *liveSession) finish(state, code, why string) (string, error) {
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endLimit)
		defer cancel()
		s.saveRunning(ctx)
		s.mu.Lock()
		s.closing, s.cut = true, s.gate.Running(session.Run) > 0
		s.mu.Unlock()
		s.end(errOver) // what runs in it is killed
		s.last = s.lastCheckpoint(ctx)
		s.gate.Shut(errOver)
		s.tasks.Wait()
		s.mu.Lock()
		s.rec.State, s.rec.Code, s.rec.EndedAt = state, code, time.Now().UTC()
		if state != events.SessionEnded {
			s.rec.Error = why
		}
		if s.last != nil {
			s.rec.Error = s.last.Error()
		}
		s.last = errors.Join(s.last, s.writeLocked(ctx))
		s.mu.Unlock()
		s.tell(state, nil)
		s.leave()
	})
	<-s.ended
	return s.record().Checkpoint, s.last
}

// fail ends a session that could not be started, or whose sandbox died.
func (s *liveSession) fail(why error) {
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endLimit)
		defer cancel()
		s.end(why)
		s.gate.Shut(why)
		s.tasks.Wait()
		s.mu.Lock()
		s.rec.ID, s.rec.State, s.rec.Error, s.rec.Code, s.rec.EndedAt = s.id, events.SessionFailed, why.Error(), "internal", time.Now().UTC()
		var r *refusal
		if errors.As(why, &r) {
			s.rec.Code = r.code
		}
		err := s.writeLocked(ctx)
		s.mu.Unlock()
		if err != nil {
			s.w.log.Warn().Err(err).Str("session", s.id).Msg("write down that a session failed")
		}
		s.tell(events.SessionFailed, nil)
		s.leave()
	})
}

// drop forgets a session that is not this worker's any more, without a word in its record.
func (s *liveSession) drop(why error) {
	s.once.Do(func() {
		s.end(why)
		s.gate.Shut(why)
		s.tasks.Wait()
		s.leave()
	})
}

// leave removes what is left of the session here.
func (s *liveSession) leave() {
	if s.sub != nil {
		_ = s.sub.Drain() // it fails with the connection
	}
	if s.box.sb != nil {
		s.w.discard(s.box.sb)
	}
	if s.box.release != nil {
		s.box.release()
	}
	s.mu.Lock()
	for id := range s.uploads {
		s.dropUpload(id)
	}
	s.mu.Unlock()
	s.w.mu.Lock()
	delete(s.w.sessions, s.id)
	s.w.mu.Unlock()
	close(s.ended)
}

// endSessions ends all sessions of a worker that stops, each with a checkpoint to resume from.
func (w *Worker) endSessions() {
	w.mu.Lock()
	var all []*liveSession
	for _, s := range w.sessions {
		all = append(all, s)
	}
	w.mu.Unlock()
	var ending sync.WaitGroup
	for _, s := range all {
		ending.Go(func() {
			if _, err := s.finish(events.SessionEnded, "worker_stopped", ""); err != nil {
				w.log.Error().Err(err).Str("session", s.id).Msg("end a session")
			}
			s.calls.Wait()
		})
	}
	ending.Wait()
}
