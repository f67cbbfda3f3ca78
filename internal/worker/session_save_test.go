package worker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// ticking starts a detached process that appends pairs of lines to a file for as long as it lives, and waits for the first.
func ticking(t *testing.T, c *client.Client, id string) {
	t.Helper()
	script := "while :; do echo a; echo b; done >>ticks & echo x >there; wait"
	if _, err := c.ExecDetached(t.Context(), id, api.Exec{Argv: []string{"sh", "-c", script}}); err != nil {
		t.Fatal(err)
	}
	until(t, "it ticks", func() bool { return ticks(t, c, id) > 0 })
}

func ticks(t *testing.T, c *client.Client, id string) int {
	t.Helper()
	out, _, _ := run1(t, c, id, "sh", "-c", "wc -l <ticks 2>/dev/null || echo 0")
	n := 0
	for _, d := range strings.TrimSpace(out) {
		n = n*10 + int(d-'0')
	}
	return n
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// background runs a script in a session; what comes is how it ended.
func background(t *testing.T, c *client.Client, id, script string) <-chan api.ExecEnd {
	t.Helper()
	ended := make(chan api.ExecEnd, 1)
	go func() {
		end, err := c.Exec(context.WithoutCancel(t.Context()), id, api.Exec{Argv: []string{"sh", "-c", script}}, nil, nil)
		if err != nil {
			t.Error(err)
		}
		ended <- end
	}()
	return ended
}

// sessionEvent waits for an event of a session.
func (r *rig) sessionEvent(t *testing.T, id string, wanted func(events.Event) bool) events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	records, err := r.fleet.Log.Follow(ctx, events.Filter{Noun: events.NounSession})
	if err != nil {
		t.Fatal(err)
	}
	for rec := range records {
		if rec.Event.Subject == id && wanted(rec.Event) {
			return rec.Event
		}
	}
	t.Fatalf("session %s: no such event", id)
	return events.Event{}
}

func (r *rig) stored(t *testing.T, id string) checkpoint.Checkpoint {
	t.Helper()
	cp, err := checkpoint.Load(t.Context(), r.fleet.Checkpoints, id)
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

// A checkpoint beside detached processes stops them and lets them go on, and says that it is fuzzy: record, event and
// reply. Rollback and end kill them.
func TestSession_CheckpointBesideDetachedProcessesIsFuzzy(t *testing.T) {
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	clean, err := c.CheckpointSession(t.Context(), s.ID)
	if err != nil || clean.Fuzzy {
		t.Fatalf("got %+v, %v; want a checkpoint that is not fuzzy", clean, err)
	}
	ticking(t, c, s.ID)
	fuzzy, err := c.CheckpointSession(t.Context(), s.ID)
	if err != nil || !fuzzy.Fuzzy || fuzzy.Checkpoint == clean.Checkpoint {
		t.Fatalf("got %+v, %v; want a fuzzy one", fuzzy, err)
	}
	if cp := r.stored(t, fuzzy.Checkpoint); !cp.Fuzzy || !cp.Portable {
		t.Errorf("record: got %+v, want a portable fuzzy one", cp)
	}
	told := r.sessionEvent(t, s.ID, func(e events.Event) bool { return e.Data.Checkpoint != nil && e.Data.Checkpoint.ID == fuzzy.Checkpoint })
	if !told.Data.Checkpoint.Fuzzy || told.Kind() != "checkpointed" {
		t.Errorf("event: got %s of %+v, want it fuzzy", told.Kind(), told.Data.Checkpoint)
	}
	at := ticks(t, c, s.ID)
	until(t, "it goes on", func() bool { return ticks(t, c, s.ID) > at })
	n := r.start(t, "default", api.SessionStart{Checkpoint: fuzzy.Checkpoint})
	if got := ticks(t, c, n.ID); got == 0 || got > at {
		t.Errorf("resumed: got %d ticks, want those before the checkpoint: at most %d", got, at)
	}
	if out, _, _ := run1(t, c, n.ID, "cat", "a", "d/b", "there"); out != "one\ntwo\nx\n" {
		t.Errorf("resumed: got %q", out)
	}
	if _, err := c.RollbackSession(t.Context(), s.ID, clean.Checkpoint); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := run1(t, c, s.ID, "sh", "-c", "ls ticks there 2>/dev/null; pgrep -c -f '[d]one >>ticks'"); out != "0\n" {
		t.Errorf("after the rollback: got %q, want nothing of it", out)
	}
	ticking(t, c, s.ID)
	if _, err := c.RollbackSession(t.Context(), s.ID, fuzzy.Checkpoint); err != nil {
		t.Fatal(err)
	}
	at = ticks(t, c, s.ID)
	ticking(t, c, s.ID)
	until(t, "it ticks on", func() bool { return ticks(t, c, s.ID) > at })
	end, err := c.EndSession(t.Context(), s.ID)
	if err != nil || !end.Fuzzy {
		t.Fatalf("end: got %+v, %v; want a fuzzy one", end, err)
	}
	last := r.start(t, "default", api.SessionStart{Checkpoint: end.Checkpoint})
	if got := ticks(t, c, last.ID); got <= at {
		t.Errorf("resumed from the end: got %d ticks, want more than %d", got, at)
	}
}

// The idle time-out is not held off by what was detached, and leaves a checkpoint; so does the absolute one while a command runs,
// and the worker's stop.
func TestSession_EndsByTimeoutsAndTheWorkersStop(t *testing.T) {
	r := newRig(t)
	c := sessions(t, r)
	_, stop := r.worker(t, "w1")
	over := func(s events.Session) bool { return s.State != events.SessionActive }
	resumed := func(what string, s events.Session) {
		t.Helper()
		if s.Checkpoint == "" || !r.stored(t, s.Checkpoint).Fuzzy || !s.Fuzzy {
			t.Fatalf("%s: got %+v, want a fuzzy checkpoint to resume from", what, s)
		}
	}
	idle := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, IdleTimeout: "2s"})
	ticking(t, c, idle.ID)
	got := r.awaitSession(t, idle.ID, over)
	if got.State != events.SessionExpired || got.EndedAt.Sub(got.UsedAt) < 2*time.Second {
		t.Errorf("idle: got %+v", got)
	}
	resumed("idle", got)
	absolute := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, Timeout: "2s"})
	end := background(t, c, absolute.ID, "echo x >before; sleep 600; echo x >after")
	got = r.awaitSession(t, absolute.ID, over)
	if got.State != events.SessionExpired || got.EndedAt.Sub(got.CreatedAt) > 10*time.Second {
		t.Errorf("absolute: got %+v", got)
	}
	resumed("absolute", got)
	if e := <-end; e.Cause != "cancelled" {
		t.Errorf("its command: got %+v, want it cancelled", e)
	}
	stopped := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	ticking(t, c, stopped.ID)
	end = background(t, c, stopped.ID, "trap '' TERM; echo x >before; sleep 600")
	until(t, "its command runs", func() bool {
		out, err := c.ListFiles(t.Context(), stopped.ID, ".")
		return err == nil && slices.ContainsFunc(out, func(e api.SessionEntry) bool { return e.Name == "before" })
	})
	stop()
	got = r.awaitSession(t, stopped.ID, over)
	if got.State != events.SessionEnded || got.Code != "worker_stopped" {
		t.Errorf("the worker's stop: got %+v", got)
	}
	resumed("the worker's stop", got)
	if e := <-end; e.Cause != "cancelled" {
		t.Errorf("its command: got %+v, want it cancelled", e)
	}
	r.worker(t, "w2")
	for what, id := range map[string]string{"absolute": r.awaitSession(t, absolute.ID, over).Checkpoint, "stopped": got.Checkpoint} {
		n := r.start(t, "default", api.SessionStart{Checkpoint: id})
		if out, _, _ := run1(t, c, n.ID, "sh", "-c", "cat before; ls after 2>/dev/null"); out != "x\n" {
			t.Errorf("%s, resumed: got %q", what, out)
		}
	}
}
