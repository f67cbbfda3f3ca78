package plans

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case B6. A full disk is a failed plan with that reason: what was stored before stays usable, the worker goes on, and what
// killed checkpoints leave is swept. TestBadInput_FullDisk is the part that needs no kill.
func TestCase_B6(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	disk := c.Place.SmallDisk(t, "64m")
	state := filepath.Join(disk, "w")
	start := func() *fleettest.Process {
		return c.Start(t, "w", "worker", "--name", "w", "--state-dir", state, "--slots", "4", "--allow-path", c.Path("work")).Ready(t)
	}
	w := start()
	dir := c.Tree(t, "d", "echo x >f")
	before := fleettest.Snapshot(t, dir)

	file := c.PlanOf(t, "apply: auto\n"+fleettest.Resource(dir), `{id: half, checkpoint: true, run: "head -c 15000000 /dev/urandom >a"}`, `{id: more, run: "head -c 50000000 /dev/urandom >b"}`)
	id := c.Submit(t, file)
	v := c.Ended(t, id, events.StateFailed)
	if said := fleettest.Deref(v.Error) + c.Do(t, "warmfleet", "plan", "logs", id); !strings.Contains(said, "pace") {
		t.Errorf("neither error nor output says what is full: %q", said)
	}
	fleettest.Unchanged(t, dir, before)
	if got := c.Sh(t, c.Export(t, stepCheckpoint(t, v)), "wc -c <a; ls"); got != "15000000\na\nf\n" {
		t.Errorf("the checkpoint before: %q", got)
	}
	c.Ended(t, c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "echo y >f")), events.StateExecuted)

	var ids []string
	points := killPoints()
	for i := range 10 {
		file := c.PlanOf(t, "max_attempts: 20\napply: never\n"+fleettest.Resource(dir),
			`{id: one, checkpoint: true, run: "head -c 3000000 /dev/urandom >a"}`, `{id: two, checkpoint: true, run: "head -c 1000000 /dev/urandom >b"}`)
		id := c.Submit(t, file)
		point := points[i%len(points)]
		fleettest.Eventually(t, point.name, func() bool { return point.reached(t, c, state, id) })
		w.Kill(t)
		w = start()
		ids = append(ids, id)
	}
	endedWell(t, c, ids)
	fleettest.Eventually(t, "what was under way to be swept", func() bool { return len(fleettest.Unfinished(t, state)) == 0 })
}

// Case B7. The product's own data is in no sandbox, checkpoint or difference, wherever it lies, and git does not see it. Where
// the sandbox or its rollback is of the whole directory, a state directory in it is refused before anything runs.
func TestCase_B7(t *testing.T) {
	t.Parallel()
	for _, place := range []struct {
		name   string
		inside bool
		state  func(t *testing.T, p *fleettest.Place, dir string) *fleettest.Place
	}{
		{"Inside", true, func(_ *testing.T, p *fleettest.Place, dir string) *fleettest.Place {
			return p.With("WARMFLEET_STATE_DIR=" + filepath.Join(dir, ".data"))
		}},
		{"ThroughALink", true, func(t *testing.T, p *fleettest.Place, dir string) *fleettest.Place {
			fleettest.Must(t, os.Symlink(filepath.Join(dir, "sub"), p.Path("link")))
			return p.With("WARMFLEET_STATE_DIR=" + p.Path("link", "data"))
		}},
		{"HomeIsTheTarget", true, func(_ *testing.T, p *fleettest.Place, dir string) *fleettest.Place {
			return p.Without("HOME").Without("XDG_STATE_HOME").Without("XDG_CONFIG_HOME").With("HOME=" + dir)
		}},
		{"DefaultsThere", false, func(_ *testing.T, p *fleettest.Place, _ string) *fleettest.Place { return p }},
	} {
		for _, strategy := range fleettest.Strategies() {
			t.Run(place.name+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				p := fleettest.NewPlace(t, fleettest.Ordinary(t))
				dir := p.Tree(t, "d", "git init -q -b trunk .; mkdir sub; echo one >f; echo s >sub/s; git add -A; "+fleettest.GitIdentity+"commit -qm one")
				q := place.state(t, p, dir)
				q.Cwd = dir
				if place.inside && strategy != "git_worktree" {
					ownDataIsRefused(t, q, dir, strategy)
				} else {
					ownDataStaysOut(t, q, dir, strategy)
				}
				if got := p.Sh(t, dir, "git status --porcelain -uall | grep -v '^?? [fg]' || true"); got != "" {
					t.Errorf("git status of the original:\n%s", got)
				}
			})
		}
	}
}

func ownDataIsRefused(t *testing.T, p *fleettest.Place, dir, strategy string) {
	r := p.Warmfleet(t, "run", p.Plan(t, "strategy: "+strategy+"\napply: auto", "echo x >f"), "--path", ".", "-o", "json").Exits(t, 2)
	v := r.View(t)
	if v.State != events.StateFailed || !strings.Contains(fleettest.Deref(v.Error), "--state-dir") || strings.Contains(fleettest.Deref(v.Error), "\n") {
		t.Errorf("state %s, error %q: want one line that says what to do", v.State, fleettest.Deref(v.Error))
	}
	if v.Steps[0].State != events.StepSkipped || fleettest.Read(t, dir, "f") != "one\n" {
		t.Errorf("the step is %s and f is %q, want nothing to have run", v.Steps[0].State, fleettest.Read(t, dir, "f"))
	}
}

func ownDataStaysOut(t *testing.T, p *fleettest.Place, dir, strategy string) {
	own := func(listing string) bool {
		return strings.Contains(listing, "data") || strings.Contains(listing, ".local")
	}
	var sizes []int64
	for i := range 2 {
		file := p.PlanOf(t, "strategy: "+strategy+"\napply: auto", "{id: one, checkpoint: true, run: "+fleettest.Quoted(fmt.Sprintf("ls -A . sub; echo x >f%d", i))+"}", `{id: two, run: "echo x >g"}`)
		v := p.Warmfleet(t, "run", file, "--path", ".", "-o", "json").Exits(t, 0).View(t)
		var size int64
		for _, c := range v.Checkpoints {
			size = max(size, c.SizeBytes)
		}
		sizes = append(sizes, size)
		if saw := p.Do(t, "warmfleet", "plan", "logs", v.ID, "--step", "one"); own(saw) {
			t.Errorf("round %d: the step saw\n%s", i, saw)
		}
		if got := p.Do(t, "warmfleet", "plan", "diff", v.ID, "-o", "name"); strings.Trim(got, "fg01\n") != "" {
			t.Errorf("round %d: changed: %q, want f%d and g at most", i, got, i)
		}
		if got := p.Sh(t, dir, "warmfleet checkpoint export "+v.Checkpoints[0].ID+" | tar -t | grep -v '^./.git/'"); own(got) {
			t.Errorf("round %d: a checkpoint has\n%s", i, got)
		}
	}
	if first, last := sizes[0], sizes[len(sizes)-1]; last > first+2000 {
		t.Errorf("the largest checkpoint of each round: %v bytes, want them not to grow", sizes)
	}
}
