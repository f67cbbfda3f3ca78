package worker

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// The named checkpoint wins over what is warm: a warm sandbox, which is at a newer commit, gives its running init and none of
// its files. Where its image is another, or the network, the session starts cold and says why.
func TestSession_NamedCheckpointWinsOverWarmth(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	c := sessions(t, p.rig)
	p.push(t, "v1")
	image := p.image(t, "echo by-v1 >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s","max_age":"1h"`)
	p.warm(t, w, "a warm one", idle(1))
	s := p.start(t, "api", api.SessionStart{Pool: "api", User: "U", Email: "u@example.com"})
	run1(t, c, s.ID, "sh", "-c", "echo mine >mine; rm built")
	end, err := c.EndSession(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	commit := p.push(t, "v2")
	p.warm(t, w, "a warm one at v2", func(n events.Warm) bool { return n.Idle == 1 && n.Commit == commit })
	resumed := func(what, note string, req api.SessionStart) events.Session {
		t.Helper()
		req.Checkpoint = end.Checkpoint
		n := p.start(t, "api", req)
		if n.Source != events.SourceCheckpoint || n.Image != image.ID || len(n.Notes) != 1 || !strings.HasPrefix(n.Notes[0], note) {
			t.Errorf("%s: got %+v, want source checkpoint and a note that begins with %q", what, n, note)
		}
		told := p.sessionEvent(t, n.ID, func(e events.Event) bool { return e.Kind() == "started" })
		if len(told.Data.Notes) != 1 || told.Data.Source != events.SourceCheckpoint || !strings.HasPrefix(told.Data.Notes[0], note) {
			t.Errorf("%s: event says %s, %q", what, told.Data.Source, told.Data.Notes)
		}
		out, _, _ := run1(t, c, n.ID, "sh", "-c", "cat VERSION mine; ls built 2>/dev/null; git status --porcelain; git config user.name")
		if out != "v1\nmine\n?? mine\nU\n" {
			t.Errorf("%s: got %q, want exactly the checkpoint", what, out)
		}
		return n
	}
	before := p.warm(t, w, "a warm one", idle(1))
	n := resumed("warm", "warm:", api.SessionStart{})
	p.warm(t, w, "it was claimed", func(n events.Warm) bool { return n.Hits == before.Hits+1 })
	if _, err := c.RollbackSession(t.Context(), n.ID, end.Checkpoint); err != nil {
		t.Errorf("roll back to what it was resumed from: %v", err)
	}
	p.warm(t, w, "another warm one", idle(1))
	resumed("another network", "cold: network allow", api.SessionStart{Network: api.Network{Mode: plan.NetworkAllow}})
	p.image(t, "echo by-v2 >built")
	p.warm(t, w, "one of the new image", func(n events.Warm) bool { return n.Idle == 1 && n.Image != image.ID })
	resumed("another image", "cold: the checkpoint stands on image", api.SessionStart{})
}

// The worker's limits hold for every session, whatever it started from.
func TestSession_HasTheWorkersLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	config := r.config(t, "w1")
	config.Limits = isolate.Limits{Disk: 1 << 20}
	w, err := New(t.Context(), config, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	for _, what := range []string{"of a path", "resumed"} {
		_, _, end := run1(t, c, s.ID, "sh", "-c", "head -c 20000000 /dev/zero >big; sleep 5")
		if end.Cause != string(isolate.CauseDisk) {
			t.Errorf("%s: got %+v, want its disk limit to end it", what, end)
		}
		run1(t, c, s.ID, "rm", "big")
		over, err := c.EndSession(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		s = r.start(t, "default", api.SessionStart{Checkpoint: over.Checkpoint})
	}
}
