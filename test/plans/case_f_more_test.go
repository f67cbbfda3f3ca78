package plans

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case F2: a line of 100 MB is one step's output like any other: bounded, counted, shown, and nothing that reads the plan minds it, before or
// after its end.
func TestCase_F2_HundredMegabytes(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "f2", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "head -c 100M /dev/zero | tr '\\0' x; exit 3"))
	v := c.Ended(t, id, events.StateFailed)
	if got := v.Steps[0].ExitCode; got == nil || *got != 3 {
		t.Errorf("exit code %v, want 3", fleettest.Deref(got))
	}
	keptOf(t, c.Warmfleet(t, "plan", "logs", id).Exits(t, 0), strings.Repeat("x", size))
	c.Do(t, "warmfleet", "plan", "show", id)
	if r := c.Warmfleet(t, "plan", "cancel", id); r.Code == 0 || !strings.Contains(r.Stderr, "failed") {
		t.Errorf("cancel afterwards: exit code %d, %s", r.Code, r.Stderr)
	}
	for line := range strings.Lines(c.Do(t, "warmfleet", "plan", "events", id, "-o", "jsonl")) {
		if !json.Valid([]byte(line)) || len(line) > 64<<10 {
			t.Errorf("an event of %d bytes: %s", len(line), fleettest.Tail(line, 200))
		}
	}
}

// Output goes on where a reader left it, by the sequence of what it has read; a chunk is never larger than a message of a small server.
func TestCase_F2_Resumed(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "f2", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), `for i in $(seq 20); do printf '%d\000\377\n' $i; head -c 20000 /dev/zero; done`))
	c.Ended(t, id, events.StateExecuted)
	whole := c.Do(t, "warmfleet", "plan", "logs", id)
	read := func(from uint64, chunks int) (text string, next uint64) {
		for chunk, err := range c.Fleet.Output.Read(t.Context(), events.OutputQuery{PlanID: id, From: from}) {
			fleettest.Must(t, err)
			if len(chunk.Data) > events.ChunkSize {
				t.Errorf("a chunk of %d bytes", len(chunk.Data))
			}
			text, next = text+string(chunk.Data), chunk.Seq+1
			if chunks--; chunks == 0 {
				break
			}
		}
		return text, next
	}
	var got string
	for at, more := uint64(0), true; more; {
		part, next := read(at, 3)
		got, at, more = got+part, next, part != ""
	}
	if got != whole {
		t.Errorf("read in parts: %d bytes, whole: %d", len(got), len(whole))
	}
}

// Case F3: an editor or a pager that the plan sets is its own to use; without one none waits.
func TestCase_F3_EditorOfThePlan(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "f3", "git init -q -b trunk .; echo x >f; git add f; "+fleettest.GitIdentity+"commit -qm one")
	const commit = "git config user.name t; git config user.email t@example.com; echo $GIT_EDITOR $EDITOR $PAGER; git commit -q --allow-empty && git log -1 --format=%s"
	head := "apply: never\nstrategy: git_worktree\n" + fleettest.Resource(dir)
	with := c.Submit(t, c.Plan(t, head+"\nenv: {GIT_EDITOR: 'echo by the plan >', PAGER: mine}", commit))
	c.Ended(t, with, events.StateExecuted)
	if got := c.Do(t, "warmfleet", "plan", "logs", with); got != "echo by the plan > /bin/false mine\nby the plan\n" {
		t.Errorf("with an editor: %q", got)
	}
	without := c.Submit(t, c.Plan(t, head, commit))
	if v := c.Ended(t, without, events.StateFailed); fleettest.Deref(v.Steps[0].Cause) != "exit" {
		t.Errorf("without an editor: %+v", v.Steps[0])
	}
}

// Case F4: a step that was cancelled says so, in the plan and in its events, and is no success, no signal and no exit code.
func TestCase_F4_Cancelled(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "f4", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true", "sleep 60", "true"))
	c.Until(t, id, "the second step", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("step-2")))
	c.Do(t, "warmfleet", "plan", "cancel", id)
	c.Ended(t, id, events.StateCancelled)
	v := c.Warmfleet(t, "plan", "show", id, "-o", "json").Exits(t, 0).View(t)
	for i, want := range []struct{ state, cause string }{{"succeeded", "exit"}, {"failed", "cancelled"}, {"skipped", ""}} {
		s := v.Steps[i]
		if s.State != want.state || fleettest.Deref(s.Cause) != want.cause || fleettest.Deref(s.Signal) != "" || i == 1 && s.ExitCode != nil {
			t.Errorf("step %d is %s by %q, signal %q, want %s by %q", i+1, s.State, fleettest.Deref(s.Cause), fleettest.Deref(s.Signal), want.state, want.cause)
		}
	}
}
