package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// sessions are what the tests of sessions need beside the rig.
func sessions(t *testing.T, r *rig) *client.Client {
	t.Helper()
	c, err := client.New(r.js.Conn(), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start queues a session's command and waits until its record says that it started, or failed.
func (r *rig) start(t *testing.T, token string, req api.SessionStart) events.Session {
	t.Helper()
	req.ID = events.NewID()
	params, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	cmd := events.NewCommand(token, events.VerbSession, req.ID)
	cmd.Params = params
	if err := r.fleet.Queue.Publish(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	return r.awaitSession(t, req.ID, func(s events.Session) bool { return s.State != events.SessionStarting })
}

func (r *rig) awaitSession(t *testing.T, id string, wanted func(events.Session) bool) (s events.Session) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		e, err := r.fleet.Sessions.Get(t.Context(), id)
		if errors.Is(err, kv.ErrNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		s = events.Session{} // what is not there is its zero value
		if err := json.Unmarshal(e.Value, &s); err != nil {
			t.Fatal(err)
		}
		if wanted(s) {
			return s
		}
	}
	t.Fatalf("session %s did not get there: %+v", id, s)
	return s
}

func run1(t *testing.T, c *client.Client, id string, argv ...string) (stdout, stderr string, end api.ExecEnd) {
	t.Helper()
	var out, errs bytes.Buffer
	end, err := c.Exec(t.Context(), id, api.Exec{Argv: argv}, &out, &errs)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), end
}

func content(t *testing.T, c *client.Client, id, path string) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.ReadFile(t.Context(), id, api.SessionRead{Path: path}, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSession_LifeAndResumeOnAnotherWorker(t *testing.T) {
	r := newRig(t)
	c := sessions(t, r)
	w, stop := r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, User: `D'A $(touch x)`, Email: "q@example.com"})
	if s.State != events.SessionActive || s.Source != events.SourcePath {
		t.Fatalf("got %+v, want an active session of the path", s)
	}
	if want := w.Record().Started; !s.WorkerStarted.Equal(want) {
		t.Errorf("taken by a worker that started %s, want %s", s.WorkerStarted, want)
	}
	if got := content(t, c, s.ID, "a"); got != "one\n" {
		t.Errorf("a: got %q", got)
	}
	big := strings.Repeat("x\x00y", api.SessionChunk) // three parts, and a reply of two
	if err := c.WriteFile(t.Context(), s.ID, "new/big", 0o750, strings.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	if got := content(t, c, s.ID, "new/big"); got != big {
		t.Errorf("new/big: got %d bytes, want %d", len(got), len(big))
	}
	out, errs, end := run1(t, c, s.ID, "sh", "-c", "echo out; echo err >&2; exit 4")
	if out != "out\n" || errs != "err\n" || end.ExitCode == nil || *end.ExitCode != 4 {
		t.Errorf("exec: got %q, %q, %+v", out, errs, end)
	}
	cp, err := c.CheckpointSession(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	run1(t, c, s.ID, "rm", "-rf", "new", "a")
	if _, err := c.RollbackSession(t.Context(), s.ID, cp.Checkpoint); err != nil {
		t.Fatal(err)
	}
	if got := content(t, c, s.ID, "a"); got != "one\n" {
		t.Errorf("a after the rollback: got %q", got)
	}
	run1(t, c, s.ID, "sh", "-c", "echo last >last")
	stop() // the worker ends its sessions
	over := r.awaitSession(t, s.ID, func(s events.Session) bool { return s.State == events.SessionEnded })
	if over.Code != "worker_stopped" || over.Checkpoint == "" || over.Checkpoint == cp.Checkpoint {
		t.Fatalf("got %+v, want one ended with a new checkpoint", over)
	}
	r.worker(t, "w2")
	n := r.start(t, "default", api.SessionStart{Checkpoint: over.Checkpoint})
	if n.State != events.SessionActive || n.Source != events.SourceCheckpoint || n.Worker != "w2" {
		t.Fatalf("got %+v, want one resumed on w2", n)
	}
	out, _, _ = run1(t, c, n.ID, "sh", "-c", "git config user.name; cat last; stat -c %a new/big")
	if want := "D'A $(touch x)\nlast\n750\n"; out != want {
		t.Errorf("resumed: got %q, want %q", out, want)
	}
	r.has(t, "a", "one\n")
}

func TestSession_PathsStayInside(t *testing.T) {
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	run1(t, c, s.ID, "ln", "-s", "/etc", "evil")
	for _, path := range []string{"../../../etc/passwd", "evil/passwd"} {
		var b bytes.Buffer
		if err := c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: path}, &b); err == nil {
			t.Errorf("read %s: got %d bytes, want it refused", path, b.Len())
		}
	}
}

func TestSession_GoneReaderHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	b, err := json.Marshal(api.Exec{Argv: []string{"sh", "-c", "head -c 20000000 /dev/zero; echo done >done"}})
	if err != nil {
		t.Fatal(err)
	}
	subject := r.fleet.Subjects.Session(s.ID, "exec")
	if err := r.js.Conn().PublishRequest(subject, r.js.Conn().NewInbox(), b); err != nil { // nobody listens
		t.Fatal(err)
	}
	if _, err := c.CheckpointIdleSession(t.Context(), s.ID); err != nil { // waits for the command
		t.Fatal(err)
	}
	if got := content(t, c, s.ID, "done"); got != "done\n" {
		t.Errorf("got %q", got)
	}
}

func TestSession_ExpiresWithACheckpoint(t *testing.T) {
	r := newRig(t)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, IdleTimeout: "1ms"})
	over := r.awaitSession(t, s.ID, func(s events.Session) bool { return s.State == events.SessionExpired })
	if over.Checkpoint == "" {
		t.Errorf("got %+v, want a checkpoint to resume from", over)
	}
}

func TestSession_FailsOnAPathThatIsNotAllowed(t *testing.T) {
	r := newRig(t)
	r.worker(t, "w1")
	s := r.start(t, "default", api.SessionStart{Path: t.TempDir(), Host: testHost})
	if s.State != events.SessionFailed || s.Code != "path_not_allowed" {
		t.Errorf("got %+v, want path_not_allowed", s)
	}
}
