package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/session"
)

const (
	// sessionPoll is how often a session that starts is looked at.
	sessionPoll = 20 * time.Millisecond
	// sessionWait is how long the reply to a start waits for it; afterwards the state says starting.
	sessionWait = 2 * time.Minute
	// untakenLimit is how long a start may lie without a worker that takes it, or takes it over.
	untakenLimit = time.Minute
	// sessionSweep is how often records of sessions are looked at.
	sessionSweep = 10 * time.Second
)

// sessionStart asks a worker to start a session and waits until it is active and up to date, or has failed.
func (s *Scheduler) sessionStart(ctx context.Context, body []byte) (any, error) {
	var req api.SessionStart
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fail(api.CodeInvalid, "request is not JSON: %v", err)
	}
	if req.ID == "" {
		req.ID = events.NewID()
	}
	if err := s.completeStart(ctx, &req); err != nil {
		return nil, err
	}
	token, err := s.routeSession(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := s.publishStart(ctx, token, req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	for {
		rec, err := s.sessionRecord(context.WithoutCancel(ctx), req.ID)
		switch {
		case err != nil:
			return nil, err
		case rec.State == events.SessionFailed:
			return nil, fail(failedCode(rec.Code), "session %s: %s", rec.ID, rec.Error)
		case rec.State != events.SessionStarting && !rec.Syncing, !sleep(ctx, sessionPoll):
			return s.viewSession(rec), nil
		}
	}
}

// failedCode is what a client is told of why a session could not be started.
func failedCode(code string) string {
	switch code {
	case "path_not_allowed":
		return api.CodeRefused
	case "invalid", "invalid_resource", "invalid_strategy", "unsupported":
		return api.CodeInvalid
	case "no_worker":
		return api.CodeNotFound
	}
	return api.CodeInternal
}

// completeStart checks a request, and turns a session to resume into its last checkpoint.
func (s *Scheduler) completeStart(ctx context.Context, req *api.SessionStart) error {
	given := 0
	for _, v := range []string{req.Pool, req.Path, req.Repo, req.Checkpoint, req.Session} {
		if v != "" {
			given++
		}
	}
	if given != 1 {
		return fail(api.CodeInvalid, "session start: name one of pool, path, repo, checkpoint and session, not %d of them", given)
	}
	if _, err := events.ParseID(req.ID); err != nil {
		return err
	}
	if _, err := session.ParseTimeouts(req.IdleTimeout, req.Timeout); err != nil {
		return fail(api.CodeInvalid, "%v", err)
	}
	if err := (session.Identity{Name: req.User, Email: req.Email}).Check(); err != nil {
		return fail(api.CodeInvalid, "%v", err)
	}
	// Before anything is stored: a URL may carry a credential.
	if err := startForm().Validate(req); err != nil {
		return fail(api.CodeInvalid, "session start: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	switch {
	case req.Ref != "" && req.Repo == "":
		return fail(api.CodeInvalid, "ref %q: belongs to a repo: leave it out, or name one", req.Ref)
	case req.Host != "" && req.Path == "":
		return fail(api.CodeInvalid, "host %q: belongs to a path: leave it out, or name one", req.Host)
	case req.Path != "" && (!filepath.IsAbs(req.Path) || req.Host == ""):
		return fail(api.CodeInvalid, "path %q: name an absolute path and its host", req.Path)
	case req.Session == "":
		return nil
	}
	id, err := events.ParseID(req.Session)
	if err != nil {
		return err
	}
	old, err := s.sessionRecord(ctx, id)
	if err != nil {
		return err
	}
	if old.State == events.SessionActive && session.Seen(session.State(old.State), !s.holds(old)) == session.Active {
		return fail(api.CodeConflict, "session %s: is active on worker %s: use it, or fork it", id, old.Worker)
	}
	if old.Checkpoint == "" {
		return fail(api.CodeConflict, "session %s: has no checkpoint to resume from", id)
	}
	req.Session, req.Checkpoint = "", old.Checkpoint
	return nil
}

// startForm checks what a request names as a plan's resource is checked.
func startForm() plan.Form[api.SessionStart] {
	return plan.Form[api.SessionStart]{Check: func(k *plan.Checks, s *api.SessionStart) {
		if s.Repo != "" {
			k.Repo("repo", s.Repo)
		}
		if s.Ref != "" {
			k.Ref("ref", s.Ref)
		}
		if !s.Network.IsZero() {
			n := plan.Network(s.Network)
			k.Network("network", &n)
		}
	}}
}

// live tells whether a worker of that name lives that started then; whenever it did where that is not known.
func (s *Scheduler) live(worker string, started time.Time) bool {
	w, live := s.index.workers()[worker]
	return live && (started.IsZero() || started.Equal(w.Started))
}

// holds tells whether the worker that took a session lives.
func (s *Scheduler) holds(r events.Session) bool { return s.live(r.Worker, r.WorkerStarted) }

// routeSession picks the queue of a start: that of the pool, of the path's entry, or default.
func (s *Scheduler) routeSession(ctx context.Context, req api.SessionStart) (string, error) {
	pool := req.Pool
	if req.Checkpoint != "" {
		if _, err := events.ParseID(req.Checkpoint); err != nil {
			return "", err
		}
		cp, err := checkpoint.Load(ctx, s.fleet.Checkpoints, req.Checkpoint)
		if errors.Is(err, checkpoint.ErrNotFound) {
			return "", fail(api.CodeNotFound, "checkpoint %s: not found, or not stored yet", req.Checkpoint)
		}
		if err != nil {
			return "", err
		}
		if pool = cp.Metadata["pool"]; pool != "" && !s.takes(pool) {
			pool = ""
		}
	}
	if req.Path != "" {
		token, why := (&admission{workers: s.index.workers()}).routePath(events.Fold{Resource: events.Resource{Path: filepath.Clean(req.Path), Host: req.Host}})
		switch {
		case why.reject != "":
			return "", fail(api.CodeRefused, "%s", why.reject)
		case why.wait != "":
			return "", fail(api.CodeNotFound, "path %s: %s: start one with --allow-path", filepath.Clean(req.Path), why.wait)
		}
		return token, nil
	}
	if pool == "" {
		pool = "default"
	}
	if req.Pool != "" {
		if _, _, _, err := s.loadPool(ctx, req.Pool); err != nil {
			return "", err
		}
	}
	if !s.takes(pool) {
		return "", fail(api.CodeNotFound, "no live worker of pool %q: start one", pool)
	}
	return pool, nil
}

// takes tells whether a worker that is ready serves a pool; index.serves counts those that drain, too.
func (s *Scheduler) takes(pool string) bool {
	for _, w := range s.index.workers() {
		if _, serves := w.Pools[pool]; serves && w.State == events.WorkerReady {
			return true
		}
	}
	return false
}

// publishStart writes the session's record and queues its command; the same id again is the same session.
func (s *Scheduler) publishStart(ctx context.Context, token string, req api.SessionStart) error {
	params, err := json.Marshal(req)
	if err != nil {
		return err
	}
	rec, err := json.Marshal(events.Session{ID: req.ID, State: events.SessionStarting, Pool: req.Pool, CreatedAt: time.Now().UTC()})
	if err != nil {
		return err
	}
	_, err = s.fleet.Sessions.Create(ctx, req.ID, rec)
	if errors.Is(err, kv.ErrExists) {
		return nil
	}
	if err != nil {
		return err
	}
	cmd := events.NewCommand(token, events.VerbSession, req.ID)
	cmd.Params = params
	if err := s.fleet.Queue.Publish(ctx, cmd); err != nil && !errors.Is(err, events.ErrQueued) {
		return errors.Join(err, s.fleet.Sessions.Delete(ctx, req.ID, 0))
	}
	return nil
}

func (s *Scheduler) sessionRecord(ctx context.Context, id string) (events.Session, error) {
	var rec events.Session
	e, err := s.fleet.Sessions.Get(ctx, id)
	if errors.Is(err, kv.ErrNotFound) {
		return rec, fail(api.CodeNotFound, "session %s: not found", id)
	}
	if err != nil {
		return rec, err
	}
	return rec, json.Unmarshal(e.Value, &rec)
}

func (s *Scheduler) sessionGet(ctx context.Context, body []byte) (any, error) {
	id, err := idOf(body)
	if err != nil {
		return nil, err
	}
	rec, err := s.sessionRecord(ctx, id.ID)
	if err != nil {
		return nil, err
	}
	return s.viewSession(rec), nil
}

func (s *Scheduler) sessionList(ctx context.Context, _ []byte) (any, error) {
	entries, err := s.fleet.Sessions.List(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make([]api.Session, 0, len(entries))
	for _, e := range entries { // by key, which begins with the time
		var rec events.Session
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			s.log.Warn().Err(err).Str("session", e.Key).Msg("read a session's record")
			continue
		}
		out = append(out, s.viewSession(rec))
	}
	return out, nil
}

func (s *Scheduler) viewSession(r events.Session) api.Session {
	gone := r.Worker != "" && !s.holds(r)
	return api.Session{
		ID: r.ID, State: string(session.Seen(session.State(r.State), gone)), Worker: r.Worker, Source: r.Source, Notes: r.Notes, Checkpoint: r.Checkpoint, Fuzzy: r.Fuzzy,
		Pool: r.Pool, Path: r.Resource.Path, Repo: r.Resource.Repo, Ref: r.Resource.Ref, Image: r.Image, Commit: r.Commit,
		User: r.User, Email: r.Email, CreatedAt: r.CreatedAt, UsedAt: r.UsedAt, ExpiresAt: r.ExpiresAt,
		FirstReadMS: r.FirstReadMS, FirstWriteMS: r.FirstWriteMS, Error: r.Error,
	}
}

// sweepSessions fails starts that nobody took and removes records of sessions whose checkpoints are gone too, until ctx ends.
func (s *Scheduler) sweepSessions(ctx context.Context) {
	for sleep(ctx, sessionSweep) {
		entries, err := s.fleet.Sessions.List(ctx, "")
		if err != nil {
			continue // the server is away
		}
		for _, e := range entries {
			var rec events.Session
			if json.Unmarshal(e.Value, &rec) != nil {
				continue
			}
			if err := s.sweepSession(ctx, e, rec); err != nil && ctx.Err() == nil && !errors.Is(err, kv.ErrConflict) {
				s.log.Warn().Err(err).Str("session", e.Key).Msg("sweep a session's record")
			}
		}
	}
}

func (s *Scheduler) sweepSession(ctx context.Context, e kv.Entry, rec events.Session) error {
	age := time.Since(e.Created)
	switch {
	case rec.State == events.SessionStarting && age > untakenLimit && (rec.Worker == "" || !s.holds(rec)):
		what := "no worker took it"
		if rec.Worker != "" {
			what = "worker " + rec.Worker + " died while it started it, and no other took it over"
		}
		rec.State, rec.Code, rec.EndedAt = events.SessionFailed, "no_worker", time.Now().UTC()
		rec.Error = what + " within " + untakenLimit.String() + ": see warmfleet worker ls for one with a free slot"
		b, err := json.Marshal(rec)
		if err != nil {
			return err
		}
		if _, err = s.fleet.Sessions.Update(ctx, e.Key, b, e.Revision); err != nil {
			return err
		}
		return s.fleet.Log.Publish(ctx, events.NewEvent(events.TypeOf(events.NounSession, rec.State), rec.ID, s.source(), events.Data{
			Worker: rec.Worker, Host: rec.Host, Pool: rec.Pool, State: rec.State, Code: rec.Code, Error: rec.Error,
		}))
	case s.keep.Session >= 0 && age > s.keep.Session && (session.State(rec.State).Final() || !s.holds(rec)):
		return s.fleet.Sessions.Delete(ctx, e.Key, e.Revision)
	}
	return nil
}
