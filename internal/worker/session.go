package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/session"
)

// maxSessions bounds how many sessions a worker has; each is a sandbox and some memory.
const maxSessions = 64

// handleSession starts the session of a delivered command and settles it. The slot is held only for that long.
func (w *Worker) handleSession(life context.Context, d events.Delivery, cmd events.Command) {
	ctx, stop := w.heartbeat(life, d)
	defer stop()
	s, mine := w.enterSession(cmd.PlanID)
	switch {
	case s == nil:
		w.nak(life, d, heartbeatEvery) // full, or stopping: another worker may have room
		return
	case !mine:
		return // a redelivery of what is being started here: its heartbeat holds
	}
	err := w.startSession(ctx, s, cmd)
	fault.At("worker.session-started")
	switch {
	case errors.Is(err, errSilent), errors.Is(context.Cause(ctx), errSilent), errors.Is(err, kv.ErrConflict):
		w.log.Warn().Err(err).Str("session", s.id).Msg("lost a session to another worker")
		s.drop(err)
		return
	case err != nil && life.Err() != nil:
		s.drop(err)
		w.nak(life, d, 0)
		return
	case err != nil:
		s.fail(err)
	}
	w.settle(life, "ack", d.Ack)
}

// enterSession makes room for a session, or tells that it is here already; nil: there is no room.
func (w *Worker) enterSession(id string) (s *liveSession, mine bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.sessions[id]; s != nil {
		return s, false
	}
	if len(w.sessions) >= maxSessions || !open(w.draining) {
		return nil, false
	}
	s = newLiveSession(w, id)
	w.sessions[id] = s
	return s, true
}

// startSession brings a session to active, or finds that there is nothing to do.
func (w *Worker) startSession(ctx context.Context, s *liveSession, cmd events.Command) error {
	var req api.SessionStart
	if err := json.Unmarshal(cmd.Params, &req); err != nil {
		return refuse("invalid", "session %s: its parameters are not JSON: %v", s.id, err)
	}
	if err := s.claim(ctx, req); err != nil {
		return err
	}
	if s.record().State != events.SessionStarting {
		s.drop(errOver) // a late duplicate: it was started and has ended, or lives elsewhere
		return nil
	}
	o, err := w.sessionOrigin(ctx, s.id, req)
	if err != nil {
		return err
	}
	s.box = o
	w.cps.Adopt(o.sb, o.baseLayers)
	if err := s.activate(ctx, o); err != nil {
		return err
	}
	s.tell("started", nil)
	w.log.Info().Str("session", s.id).Str("source", o.source).Msg("session started")
	return nil
}

// errOver: the session has ended.
var errOver = errors.New("session is over: resume it from its last checkpoint")

// claim makes the session's record this worker's, unless it is started or over.
func (s *liveSession) claim(ctx context.Context, req api.SessionStart) error {
	t, err := session.ParseTimeouts(req.IdleTimeout, req.Timeout)
	if err == nil {
		err = session.Identity{Name: req.User, Email: req.Email}.Check()
	}
	if err != nil {
		return refuse("invalid", "session %s: %v", s.id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.w.fleet.Sessions.Get(ctx, s.id)
	switch {
	case errors.Is(err, kv.ErrNotFound):
		s.rec = events.Session{ID: s.id, State: events.SessionStarting, CreatedAt: time.Now().UTC()}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(e.Value, &s.rec); err != nil {
			return fmt.Errorf("worker: read record of session %q: %w", s.id, err)
		}
		s.rev = e.Revision
	}
	if s.rec.State != events.SessionStarting {
		return nil
	}
	s.timeouts = t
	s.rec.Worker, s.rec.WorkerStarted, s.rec.Host, s.rec.Pool = s.w.cfg.Name, s.w.started, s.w.cfg.HostID, req.Pool
	s.rec.Resource = events.Resource{Path: req.Path, Host: req.Host, Repo: req.Repo, Ref: req.Ref}
	s.rec.ResumedFrom, s.rec.User, s.rec.Email = req.Checkpoint, req.User, req.Email
	s.rec.IdleTimeout, s.rec.Timeout = t.Idle, t.Absolute
	return s.writeLocked(ctx)
}

// activate serves the session and says so in its record.
func (s *liveSession) activate(ctx context.Context, o sessionBox) error {
	s.mu.Lock()
	s.inherit(o)
	s.rec.State, s.rec.Source, s.rec.Image, s.rec.Commit = events.SessionActive, o.source, o.image, o.commit
	s.rec.Syncing, s.rec.Notes = o.fresh != nil, o.notes
	if o.from.ID != "" {
		s.rec.Checkpoint, s.rec.Fuzzy = o.from.ID, o.from.Fuzzy
	}
	now := time.Now().UTC()
	s.rec.UsedAt, s.rec.ExpiresAt = now, s.timeouts.Expires(s.rec.CreatedAt, now)
	s.identity = session.Identity{Name: s.rec.User, Email: s.rec.Email}
	s.mu.Unlock()
	if err := s.serve(); err != nil {
		return err
	}
	s.mu.Lock()
	err := s.writeLocked(ctx)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.tasks.Go(func() { s.freshen(o.fresh) })
	s.tasks.Go(s.watch)
	return nil
}

// inherit takes from a checkpoint what the request left out.
func (s *liveSession) inherit(o sessionBox) {
	for key, field := range s.kept() {
		if v := o.from.Metadata[key]; v != "" && *field == "" {
			*field = v
		}
	}
}

// kept are the fields of the record that a checkpoint carries as metadata, for whoever resumes from it.
func (s *liveSession) kept() map[string]*string {
	r := &s.rec
	return map[string]*string{
		"user": &r.User, "email": &r.Email, "pool": &r.Pool, "repo": &r.Resource.Repo, "ref": &r.Resource.Ref,
		"path": &r.Resource.Path, "host": &r.Resource.Host, "image": &r.Image, "commit": &r.Commit,
	}
}

// metadata is what a checkpoint of the session says about it.
func (s *liveSession) metadata() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]string{"session": s.id}
	for key, field := range s.kept() {
		if *field != "" {
			m[key] = *field
		}
	}
	return m
}

// writeLocked writes the record if nobody else has written it since.
func (s *liveSession) writeLocked(ctx context.Context) error {
	b, err := json.Marshal(s.rec)
	if err != nil {
		return err
	}
	var rev uint64
	if s.rev == 0 {
		rev, err = s.w.fleet.Sessions.Create(ctx, s.id, b)
	} else {
		rev, err = s.w.fleet.Sessions.Update(ctx, s.id, b, s.rev)
	}
	if errors.Is(err, kv.ErrExists) {
		err = kv.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("worker: write record of session %q: %w", s.id, err)
	}
	s.rev = rev
	return nil
}

// tell stores a fact about the session, beside the work.
func (s *liveSession) tell(typ string, cp *checkpoint.Checkpoint) {
	r := s.record()
	d := events.Data{
		Worker: r.Worker, Host: r.Host, Pool: r.Pool, Source: r.Source, Image: r.Image, Commit: r.Commit,
		State: r.State, Code: r.Code, Error: r.Error, Notes: r.Notes,
	}
	if s.box.sb != nil {
		d.SandboxID = s.box.sb.ID()
	}
	if cp != nil {
		d.Checkpoint = &events.CheckpointRef{ID: cp.ID, Phase: string(checkpoint.Session), SizeBytes: cp.SizeBytes, Portable: cp.Portable, Live: cp.Live, Fuzzy: cp.Fuzzy, Lost: len(cp.Lost)}
	}
	s.w.fact(events.NewEvent(events.TypeOf(events.NounSession, typ), s.id, "/worker/"+s.w.cfg.Name, d))
}
