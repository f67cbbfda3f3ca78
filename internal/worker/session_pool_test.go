package worker

import (
	"os"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func TestSession_OfAPoolIsWarmAndFresh(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	c := sessions(t, p.rig)
	p.push(t, "v1")
	image := p.image(t, "echo by-v1 >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s"`)
	p.warm(t, w, "a warm one", idle(1))
	commit := p.push(t, "v2") // the moment before the claim
	s := p.start(t, "api", api.SessionStart{Pool: "api", User: "U", Email: "u@example.com"})
	if s.State != events.SessionActive || s.Source != events.SourceWarm || s.Image != image.ID {
		t.Fatalf("got %+v, want a warm one of %s", s, image.ID)
	}
	if got := content(t, c, s.ID, "built"); got != "by-v1\n" { // also while it is brought up to date
		t.Errorf("built: got %q", got)
	}
	out, _, _ := run1(t, c, s.ID, "sh", "-c", "cat VERSION built; git rev-parse HEAD; git config user.name")
	if want := "v2\nby-v1\n" + commit + "\nU\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	end, err := c.EndSession(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	n := p.start(t, "api", api.SessionStart{Checkpoint: end.Checkpoint})
	if n.Source != events.SourceCheckpoint || n.Pool != "api" || n.Commit != commit {
		t.Errorf("got %+v, want it resumed from the checkpoint, whatever is warm", n)
	}
	if got := content(t, c, n.ID, "VERSION"); got != "v2\n" {
		t.Errorf("VERSION: got %q", got)
	}
}

func TestSession_GoneRemoteFailsWritesAndServesReads(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	c := sessions(t, p.rig)
	p.push(t, "v1")
	p.image(t, "echo by-v1 >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s"`)
	p.warm(t, w, "a warm one", idle(1))
	if err := os.Rename(p.repo, p.repo+".gone"); err != nil {
		t.Fatal(err)
	}
	s := p.start(t, "api", api.SessionStart{Pool: "api"})
	p.awaitSession(t, s.ID, func(s events.Session) bool { return !s.Syncing && s.Code == "sync_failed" })
	if got := content(t, c, s.ID, "VERSION"); got != "v1\n" {
		t.Errorf("VERSION: got %q", got)
	}
	if _, err := c.Exec(t.Context(), s.ID, api.Exec{Argv: []string{"true"}}, nil, nil); err == nil {
		t.Error("a command ran in a session that is not up to date")
	}
	if end, err := c.EndSession(t.Context(), s.ID); err != nil || end.Checkpoint == "" {
		t.Errorf("end: got %+v, %v", end, err)
	}
}
