package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/parts"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/session"
)

// serve answers for the session on its subjects.
func (s *liveSession) serve() error {
	prefix := s.w.fleet.Subjects.Session(s.id, "")
	sub, err := s.w.fleet.Conn.Subscribe(prefix+"*", func(m *nats.Msg) {
		verb := strings.TrimPrefix(m.Subject, prefix)
		switch {
		case verb == "flow":
			s.heed(m.Data)
			return
		case m.Reply == "":
			return
		}
		s.accept(verb, m)
	})
	if err != nil {
		return fmt.Errorf("worker: serve session %q: %w", s.id, err)
	}
	s.sub = sub
	return s.w.fleet.Conn.Flush()
}

// accept takes a request's place in line before the next one is looked at, and answers it beside others.
func (s *liveSession) accept(verb string, m *nats.Msg) {
	gated, kind := s.gated(verb, m.Data)
	if !gated {
		s.calls.Go(func() { s.call(verb, m) })
		return
	}
	ticket, err := s.gate.Join(kind)
	if err != nil {
		s.refuse(m, err)
		return
	}
	s.calls.Go(func() {
		leave, err := ticket.Wait(s.ctx)
		if err != nil {
			s.refuse(m, err)
			return
		}
		defer leave()
		s.call(verb, m)
	})
}

// gated tells whether a call waits for its turn, and as what. A part of a file that is not whole yet changes nothing.
func (s *liveSession) gated(verb string, body []byte) (gated bool, kind session.Kind) {
	switch verb {
	case "exec":
		return true, session.Run
	case "write":
		var req api.SessionWrite
		return json.Unmarshal(body, &req) == nil && (req.Upload == "" || req.Last), session.Write
	case "checkpoint":
		var req api.SessionCheckpoint
		if json.Unmarshal(body, &req) == nil && req.Wait {
			return true, session.Alone
		}
		return true, session.Save
	case "rollback":
		return true, session.Alone
	}
	return false, session.Run
}

// call answers one request. It goes on whether or not whoever asked still listens.
func (s *liveSession) call(verb string, m *nats.Msg) {
	var reply any
	var err error
	switch verb {
	case "exec", "read":
		answer := s.exec
		if verb == "read" {
			answer = s.read
		}
		if err = answer(m); err == nil {
			return // it has answered
		}
	case "write":
		reply, err = s.write(m.Data)
	case "list":
		reply, err = s.list(m.Data)
	case "status":
		reply = s.record()
	case "checkpoint":
		reply, err = s.apiCheckpoint(m.Data)
	case "rollback":
		reply, err = s.rollback(m.Data)
	case "end":
		var id string
		id, err = s.finish(events.SessionEnded, "", "")
		reply = api.SessionCheckpoint{Checkpoint: id, Fuzzy: s.record().Fuzzy}
	default:
		err = unfit("%q is no call of a session", verb)
	}
	if err == nil {
		err = s.respond(m, reply)
	}
	if err != nil {
		s.refuse(m, err)
	}
}

func (s *liveSession) respond(m *nats.Msg, reply any) error {
	b, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	return s.respondParts(m, b, nats.Header{})
}

// respondParts answers with bytes in as many messages as the server's limit asks for.
func (s *liveSession) respondParts(m *nats.Msg, b []byte, h nats.Header) error {
	all := parts.Split(b, s.w.fleet.Conn.MaxPayload())
	h.Set(api.HeaderParts, strconv.Itoa(len(all)))
	for _, part := range all {
		if err := s.w.fleet.Conn.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h, Data: part}); err != nil {
			return fmt.Errorf("worker: reply to %s: %w", m.Subject, err)
		}
	}
	return nil
}

func (s *liveSession) refuse(m *nats.Msg, err error) {
	code := api.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, checkpoint.ErrNotFound):
		code = api.CodeNotFound
	case errors.Is(err, errRequest), errors.Is(err, errPart), errors.Is(err, events.ErrID), errors.Is(err, isolate.ErrTooLarge), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		code = api.CodeInvalid
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.ELOOP), errors.Is(err, errOutside), errors.Is(err, isolate.ErrFull):
		code = api.CodeRefused
	case errors.Is(err, session.ErrShut), errors.Is(err, session.ErrBusy), errors.Is(err, errUploads), errors.Is(err, errOver), errors.Is(err, errLineage), errors.Is(err, isolate.ErrChanged):
		code = api.CodeConflict
	case errors.Is(err, context.DeadlineExceeded):
		code = api.CodeTimeout
	}
	h := nats.Header{}
	h.Set(micro.ErrorCodeHeader, code)
	h.Set(micro.ErrorHeader, strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, err.Error()))
	if err := s.w.fleet.Conn.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h}); err != nil {
		s.w.log.Warn().Err(err).Str("session", s.id).Msg("reply")
	}
}

func decodeCall(b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("worker: read request: %w: %w", errRequest, err)
	}
	return nil
}

func (s *liveSession) list(body []byte) (any, error) {
	var req api.SessionPath
	if err := decodeCall(body, &req); err != nil {
		return nil, err
	}
	dir, err := sessionPath(req.Path)
	if err != nil {
		return nil, err
	}
	infos, err := s.box.sb.List(s.ctx, dir)
	if err != nil {
		return nil, fileError("list", dir, err)
	}
	s.used(false)
	out := make([]api.SessionEntry, 0, len(infos))
	for _, i := range infos {
		kind := "other"
		switch i.Mode.Type() {
		case 0:
			kind = "file"
		case fs.ModeDir:
			kind = "dir"
		case fs.ModeSymlink:
			kind = "link"
		}
		out = append(out, api.SessionEntry{Name: api.Text(i.Name), Type: kind, Size: i.Size, Mode: i.Mode.String(), ModTime: i.ModTime.UTC()})
	}
	return out, nil
}

// apiCheckpoint takes a checkpoint. What the request says was heeded when it was given its turn.
func (s *liveSession) apiCheckpoint(body []byte) (any, error) {
	if len(body) > 0 {
		if err := decodeCall(body, &api.SessionCheckpoint{}); err != nil {
			return nil, err
		}
	}
	s.used(false)
	id, err := s.checkpoint(s.ctx)
	return api.SessionCheckpoint{Checkpoint: id, Fuzzy: s.record().Fuzzy}, err
}

// errLineage: the checkpoint is of something else than the session.
var errLineage = errors.New("checkpoint is of another origin: start a session from it instead")

// rollback brings the session back to a checkpoint of its own, or of one that it was resumed or forked from.
func (s *liveSession) rollback(body []byte) (any, error) {
	var req api.SessionCheckpoint
	if err := decodeCall(body, &req); err != nil {
		return nil, err
	}
	id, err := events.ParseID(req.Checkpoint)
	if err != nil {
		return nil, err
	}
	r, release, err := s.w.restore(s.ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	now := s.box.sb.Chain()
	if len(r.Chain) == 0 || len(now) == 0 || r.Chain[0].ID != now[0].ID {
		return nil, fmt.Errorf("worker: roll session %q back to %q: %w", s.id, id, errLineage)
	}
	if err := s.w.cps.RollbackTo(s.ctx, checkpoint.Checkpoint{ID: id, SandboxID: s.box.sb.ID()}); err != nil {
		return nil, err
	}
	s.used(true)
	s.mu.Lock()
	s.rec.Checkpoint, s.rec.Fuzzy, s.dirty, s.loose = id, r.Fuzzy, false, false
	err = s.writeLocked(s.ctx)
	s.mu.Unlock()
	s.tell("rolled_back", &r.Checkpoint)
	return api.SessionCheckpoint{Checkpoint: id}, err
}
