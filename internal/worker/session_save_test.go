package worker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
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

// A checkpoint beside a command that runs stops it while files are copied, says that it is fuzzy, and lets it go on; one that
// is to wait comes after the command, and is not fuzzy.
func TestSession_CheckpointBesideACommandIsFuzzy(t *testing.T) {
	r := newRig(t)
	c := sessions(t, r)
	w, _ := r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	ended := background(t, c, s.ID, "while ! test -e go; do echo x; done >ticks; echo over >over")
	size := func(id string) int64 { // a file that grows is not read in one piece
		all, err := c.ListFiles(t.Context(), id, ".")
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(all, func(e api.SessionEntry) bool { return e.Name == "ticks" })
		if at < 0 {
			return 0
		}
		return all[at].Size
	}
	until(t, "it ticks", func() bool { return size(s.ID) > 0 })
	fuzzy, err := c.CheckpointSession(t.Context(), s.ID)
	if err != nil || !fuzzy.Fuzzy || !r.stored(t, fuzzy.Checkpoint).Fuzzy {
		t.Fatalf("got %+v, %v; want a fuzzy one", fuzzy, err)
	}
	at := size(s.ID)
	until(t, "it goes on", func() bool { return size(s.ID) > at })
	again, err := c.CheckpointSession(t.Context(), s.ID)
	if err != nil || again.Checkpoint == fuzzy.Checkpoint {
		t.Errorf("got %+v, %v; want another one: the command went on", again, err)
	}
	waits := make(chan api.SessionCheckpoint, 1)
	go func() {
		cp, err := c.CheckpointIdleSession(context.WithoutCancel(t.Context()), s.ID)
		if err != nil {
			t.Error(err)
		}
		waits <- cp
	}()
	until(t, "it waits", func() bool { return w.session(s.ID).gate.Waiting() == 1 })
	// What waits for a command does not keep the session from being saved.
	live := w.session(s.ID)
	if due := live.save(time.Now().Add(-looseEvery)); due.Before(time.Now()) {
		t.Error("not saved while a checkpoint waits for the command")
	}
	// The write queues behind the checkpoint that waits: the command's own side lets it go.
	if err := live.box.sb.WriteFile(t.Context(), isolate.FileWrite{Path: "go"}); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.ExitCode == nil || *e.ExitCode != 0 {
		t.Errorf("the command: got %+v", e)
	}
	if cp := <-waits; cp.Fuzzy {
		t.Errorf("got %+v, want one that is not fuzzy", cp)
	} else if n := r.start(t, "default", api.SessionStart{Checkpoint: cp.Checkpoint}); content(t, c, n.ID, "over") != "over\n" {
		t.Error("the one that waited does not have the command's end")
	}
	n := r.start(t, "default", api.SessionStart{Checkpoint: fuzzy.Checkpoint})
	if got := size(n.ID); got == 0 || got > at {
		t.Errorf("resumed: got %d bytes, want those before the checkpoint: at most %d", got, at)
	}
}

// A session whose command runs when its time is over is saved before the command is killed, and once more after that: what the
// command throws away at its end is in the first, what it brings to safety is in the second.
func TestSession_IsSavedBeforeItsCommandIsKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, Timeout: "2s"})
	var said strings.Builder
	_, err := c.Exec(t.Context(), s.ID, api.Exec{Argv: []string{"sh", "-c", "trap 'mv work safe; echo bye; exit' TERM; echo x >work; while :; do sleep 0.05; done"}}, &said, nil)
	if err != nil || said.String() != "bye\n" {
		t.Errorf("got %q, %v; want what the command says at its end", said.String(), err)
	}
	end := r.awaitSession(t, s.ID, func(s events.Session) bool { return s.State == events.SessionExpired })
	first := r.sessionEvent(t, s.ID, func(e events.Event) bool { return e.Kind() == "checkpointed" })
	if !first.Data.Checkpoint.Fuzzy || first.Data.Checkpoint.ID == end.Checkpoint {
		t.Fatalf("got %+v, want a fuzzy one before that of the end, %s", first.Data.Checkpoint, end.Checkpoint)
	}
	for id, want := range map[string]string{first.Data.Checkpoint.ID: "work", end.Checkpoint: "safe"} {
		n := r.start(t, "default", api.SessionStart{Checkpoint: id})
		if out, _, _ := run1(t, c, n.ID, "sh", "-c", "ls work safe 2>/dev/null"); out != want+"\n" {
			t.Errorf("got %q, want %q", out, want)
		}
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
