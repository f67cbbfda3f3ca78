package worker

import (
	"bytes"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/api"
)

// exec runs a command, or starts a detached one, and sends what it prints as it comes.
func (s *liveSession) exec(m *nats.Msg) error {
	var req api.Exec
	if err := decodeCall(m.Data, &req); err != nil {
		return err
	}
	c, err := s.command(req)
	if err != nil {
		return err
	}
	s.used(true)
	if req.Detach {
		d, err := s.box.sb.Start(s.ctx, isolate.Command{Argv: c.Argv, Env: c.Env, Dir: c.Dir})
		if err != nil {
			return err
		}
		return s.respond(m, api.Detached{PID: d.PID, Log: d.Log})
	}
	out, forget, err := s.stream(req.Flow, m.Reply)
	if err != nil {
		return err
	}
	defer forget()
	c.Stdout, c.Stderr = out.to(api.StreamStdout), out.to(api.StreamStderr)
	result, err := s.box.sb.Exec(s.ctx, c)
	s.used(true)
	end := api.ExecEnd{
		ExitCode: result.ExitCode, Signal: result.Signal, Cause: string(result.Cause), Error: result.StartError, DurationMS: result.Duration.Milliseconds(),
	}
	end.Network, end.NetworkMore = networkUse(s.box.sb.Decisions())
	if err != nil {
		end.Cause, end.Error = string(isolate.CauseLost), err.Error()
	}
	return out.close(end)
}

func (s *liveSession) command(req api.Exec) (isolate.Command, error) {
	var c isolate.Command
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return c, unfit("argv is empty: name a program")
	}
	var err error
	if c.Dir, err = sessionPath(req.Dir); err == nil {
		c.Argv, err = ofTexts("argv", req.Argv)
	}
	if err == nil {
		req.Env, err = ofTexts("env", req.Env)
	}
	if err != nil {
		return c, err
	}
	if req.Timeout != "" {
		d, err := time.ParseDuration(req.Timeout)
		if err != nil || d <= 0 {
			return c, unfit("timeout %q: use a duration above 0, as 30s", req.Timeout)
		}
		c.Timeout = d
	}
	for _, v := range req.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return c, unfit("env %q: use NAME=value", v)
		}
	}
	s.mu.Lock()
	c.Env = append(append(s.box.sb.BaseEnv(), s.identity.Env()...), req.Env...)
	s.mu.Unlock()
	if len(req.Stdin) > 0 {
		c.Stdin = bytes.NewReader(req.Stdin)
	}
	return c, nil
}

// ofTexts reads what a command is given.
func ofTexts(what string, texts []string) ([]string, error) {
	out := make([]string, len(texts))
	for i, text := range texts {
		s, err := api.OfText(text)
		if err != nil {
			return nil, unfit("%s: %v", what, err)
		}
		if strings.ContainsRune(s, 0) {
			return nil, unfit("%s %q: has a NUL, which nothing that a program is given can", what, cutPath(s))
		}
		out[i] = s
	}
	return out, nil
}
