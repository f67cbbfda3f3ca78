package worker

import (
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

func TestPool_RenamedBranchAndForcePush(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.push(t, "v2")
	p.image(t, "echo x >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":2,"max_staleness":"0s"`)
	p.warm(t, w, "two warm ones", idle(2))
	gitAs(t, p.up, "checkout", "-q", "-b", "main2")
	gitAs(t, p.up, "push", "-q", "origin", "main2")
	gitAs(t, p.repo, "symbolic-ref", "HEAD", "refs/heads/main2")
	gitAs(t, p.up, "push", "-q", "origin", "--delete", "trunk")
	gitAs(t, p.up, "reset", "-q", "--hard", "HEAD~1")
	commit := p.push(t, "v3")
	plan := p.plan(t, "apply: never\n"+look)
	p.ends(t, plan.PlanID(), events.StateExecuted)
	if got, want := p.output(t, plan.PlanID()), "v3\nx\n"+commit+"\nmain2\n"; got != want {
		t.Errorf("step saw %q, want %q", got, want)
	}
	if claim := p.claimOf(t, plan.PlanID()); claim.Source != events.SourceWarm || claim.Commit != commit {
		t.Errorf("source %s, commit %s, want warm at %s", claim.Source, claim.Commit, commit)
	}
}

// A plan of the pool on another ref than the pool's gets a warm sandbox that was brought there.
func TestPool_OtherRef(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "echo x >built")
	gitAs(t, p.up, "checkout", "-q", "-b", "side")
	commit := p.push(t, "side")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "one warm", idle(1))
	plan := p.plan(t, "resource: {repo: "+p.repo+", ref: side}\napply: never\n"+look)
	p.ends(t, plan.PlanID(), events.StateExecuted)
	if got, want := p.output(t, plan.PlanID()), "side\nx\n"+commit+"\nside\n"; got != want {
		t.Errorf("step saw %q, want %q", got, want)
	}
	if claim := p.claimOf(t, plan.PlanID()); claim.Source != events.SourceWarm {
		t.Errorf("source %s, notes %q, want warm", claim.Source, claim.Notes)
	}
}
