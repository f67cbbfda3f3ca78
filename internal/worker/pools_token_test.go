package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/remotetest"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// tokenFile writes a credential and returns what a pool file says of it.
func tokenFile(t *testing.T, name, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(remotetest.User+":"+password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`,"token":{"file":%q}`, file)
}

// What a former token fetched is not started from, by plan or session, while the present one cannot be shown to the remote; allow_stale
// does not change that.
func TestPool_TokenChanged(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	commit := p.push(t, "v1")
	p.image(t, "true >built")
	w, _ := p.worker(t, "w1")
	const stale = `,"target_size":1,"max_staleness":"0s","allow_stale":true`
	p.apply(t, stale)
	p.warm(t, w, "one warm", idle(1))
	away := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	away(p.repo, p.repo+".away")
	p.apply(t, stale+tokenFile(t, "new", "x"))
	k := w.pooling.keeper("api")
	await(t, "the new token", func() bool { return k.now().spec.Token != nil })
	for _, strategy := range []string{"copy_on_write", "git_worktree"} { // warm, cold
		plan := p.plan(t, "apply: never\nstrategy: "+strategy+"\nsteps: [{run: cat VERSION}]\n")
		if d := p.ends(t, plan.PlanID(), events.StateFailed); d.Code != "remote_unreachable" {
			t.Errorf("%s: failed with code %s: %s", strategy, d.Code, d.Error)
		}
	}
	if b, err := w.pooledBox(t.Context(), events.NewID(), api.SessionStart{Pool: "api"}); err == nil {
		t.Errorf("a session got commit %s before its token was shown to the remote", b.commit)
	}
	away(p.repo+".away", p.repo)
	p.warm(t, w, "one warm", idle(1))
	plan := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
	p.warm(t, w, "one warm", idle(1))
	away(p.repo, p.repo+".away")
	plan = p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
	if claim := p.claimOf(t, plan.PlanID()); claim.Commit != commit || !strings.Contains(fmt.Sprint(claim.Notes), "stale: ") {
		t.Errorf("commit %s, notes %q, want a stale one: the new token read it", claim.Commit, claim.Notes)
	}
}

// A remote that denies access was asked, so what it gave before is not handed out, however stale a sandbox may be.
func TestPool_TokenDenied(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	server := remotetest.Serve(t, filepath.Dir(p.repo), "")
	p.repo = server.URL + "/" + filepath.Base(p.repo)
	p.image(t, "true >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s","allow_stale":true`+tokenFile(t, "token", "right"))
	p.warm(t, w, "one warm", idle(1))
	plan := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
	p.warm(t, w, "one warm", idle(1))
	server.Require("another")
	for range 2 {
		plan = p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
		if d := p.ends(t, plan.PlanID(), events.StateFailed); d.Code != "remote_denied" || !strings.Contains(d.Error, "token") {
			t.Errorf("failed with code %s: %s", d.Code, d.Error)
		}
	}
	server.Require("right")
	plan = p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
}
