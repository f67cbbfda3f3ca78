package fleet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

func TestMain(m *testing.M) {
	isolate.Main()
	os.Exit(m.Run())
}

const patience = 20 * time.Second

func open(t *testing.T, dir string) *fleet.Local {
	t.Helper()
	l, err := fleet.OpenLocal(t.Context(), fleet.LocalOptions{StateDir: dir, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve opens the fleet of a state directory with a worker.
func serve(t *testing.T, dir string, cfg worker.Config) (*fleet.Local, *client.Client) {
	t.Helper()
	l := open(t, dir)
	if err := l.AddWorker(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(l.Conn, "")
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

func shut(t *testing.T, l *fleet.Local) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
}

func submit(t *testing.T, c *client.Client, id, tree, steps string) api.Submitted {
	t.Helper()
	p, err := plan.ParseYAML("test.yaml", []byte("version: 1\nname: t\nresource: {path: "+tree+", host: h1}\n"+steps))
	if err != nil {
		t.Fatal(err)
	}
	s := events.NewSubmission(p.Canonical(), "test")
	s.PlanID = id
	got, err := c.Submit(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A state directory holds a whole fleet: what one process left there is served by the next.
func TestLocal_PlanOutlivesTheProcess(t *testing.T) {
	dir, tree := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	if err := errors.Join(os.MkdirAll(tree, 0o755), os.WriteFile(filepath.Join(tree, "a"), []byte("one\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	cfg := worker.Config{HostID: "h1", Slots: 1, AllowPaths: []string{tree}, DrainTimeout: time.Second}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	l, c := serve(t, dir, cfg)
	if !l.Holds() || !strings.HasPrefix(l.URL(), "nats://127.0.0.1:") {
		t.Errorf("holds %v at %s, want a server on loopback", l.Holds(), l.URL())
	}
	id := events.NewID()
	for range 2 { // the same plan again is the same plan
		if got := submit(t, c, id, tree, "steps: [{run: echo two >a}]\n"); got.ID != id {
			t.Fatalf("submitted %+v", got)
		}
	}
	awaits := func(r events.Record) bool { return r.Event.Data.Plan.State == events.StateAwaitingApproval }
	if r, err := c.Wait(ctx, id, awaits); err != nil || r.Event.Data.Final {
		t.Fatalf("%s, %v, want it to await approval", r.Event.Kind(), err)
	}
	diff, err := c.Diff(ctx, id)
	if err != nil || !strings.Contains(diff.Diff, "+two") {
		t.Errorf("difference %q, %v", diff, err)
	}
	shut(t, l)

	l, c = serve(t, dir, cfg)
	defer func() { shut(t, l) }()
	if _, err := c.Approve(ctx, id, "me"); err != nil {
		t.Fatal(err)
	}
	if r, err := c.Wait(ctx, id, nil); err != nil || r.Event.Kind() != events.TypeApplied {
		t.Fatalf("%s, %v, want applied", r.Event.Kind(), err)
	}
	if b, err := os.ReadFile(filepath.Join(tree, "a")); err != nil || string(b) != "two\n" {
		t.Errorf("the original holds %q, %v", b, err)
	}
	var plans []events.View
	for applied := false; !applied && ctx.Err() == nil; { // the scheduler may hear of it after us
		var err error
		plans, err = c.Plans(ctx)
		applied = err == nil && len(plans) == 1 && plans[0].State == events.StateApplied
	}
	if ctx.Err() != nil {
		t.Errorf("plans %+v", plans)
	}
	var refused *client.Error
	if _, err := c.Cancel(ctx, id, "me"); !errors.As(err, &refused) || refused.Code != api.CodeConflict {
		t.Errorf("cancel after the end: %v, want code %s", err, api.CodeConflict)
	}
}

func TestLocal_SecondJoinsTheFirst(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	if _, err := fleet.OpenLocal(t.Context(), fleet.LocalOptions{StateDir: dir, MustHold: true, Log: zerolog.Nop()}); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("a second holder: %v, want an error that names --state-dir", err)
	}
	second := open(t, dir)
	if second.Holds() || second.URL() != first.URL() {
		t.Errorf("holds %v at %s, want it to have joined %s", second.Holds(), second.URL(), first.URL())
	}
	c, err := client.New(second.Conn, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := second.AddWorker(t.Context(), worker.Config{Slots: 1, DrainTimeout: time.Second}); err != nil {
		t.Fatal(err)
	}
	if workers, err := c.Workers(t.Context()); err != nil || len(workers) != 1 {
		t.Errorf("%d workers, %v, want 1", len(workers), err)
	}
	shut(t, second)
	shut(t, first)
}

func TestHostID(t *testing.T) {
	if got := fleet.HostID("mine"); got != "mine" {
		t.Errorf("host id %q, want the flag's", got)
	}
}
