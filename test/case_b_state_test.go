package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Case B6. A full disk is a failed plan with that reason: what was stored before stays usable, the worker goes on, and what
// killed checkpoints leave is swept. TestBadInput_FullDisk is the part that needs no kill.
func TestCase_B6(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	disk := smallDisk(t, c.place, "64m")
	state := filepath.Join(disk, "w")
	start := func() *process {
		return c.start(t, "w", "worker", "--name", "w", "--state-dir", state, "--slots", "4", "--allow-path", c.path("work")).ready(t)
	}
	w := start()
	dir := c.tree(t, "d", "echo x >f")
	before := snapshot(t, dir)

	file := c.planOf(t, "apply: auto\n"+resource(dir), `{id: half, checkpoint: true, run: "head -c 15000000 /dev/urandom >a"}`, `{id: more, run: "head -c 50000000 /dev/urandom >b"}`)
	id := c.submit(t, file)
	v := c.ended(t, id, events.StateFailed)
	if said := deref(v.Error) + c.do(t, "warmfleet", "plan", "logs", id); !strings.Contains(said, "pace") {
		t.Errorf("neither error nor output says what is full: %q", said)
	}
	unchanged(t, dir, before)
	if got := c.sh(t, export(t, c, stepCheckpoint(t, v)), "wc -c <a; ls"); got != "15000000\na\nf\n" {
		t.Errorf("the checkpoint before: %q", got)
	}
	c.ended(t, c.submit(t, c.plan(t, "apply: never\n"+resource(dir), "echo y >f")), events.StateExecuted)

	var ids []string
	points := killPoints()
	for i := range 10 {
		file := c.planOf(t, "max_attempts: 20\napply: never\n"+resource(dir),
			`{id: one, checkpoint: true, run: "head -c 3000000 /dev/urandom >a"}`, `{id: two, checkpoint: true, run: "head -c 1000000 /dev/urandom >b"}`)
		id := c.submit(t, file)
		point := points[i%len(points)]
		eventually(t, point.name, func() bool { return point.reached(t, c, state, id) })
		w.kill(t)
		w = start()
		ids = append(ids, id)
	}
	endedWell(t, c, ids)
	eventually(t, "what was under way to be swept", func() bool { return len(unfinished(t, state)) == 0 })
}

// Case B7. The product's own data is in no sandbox, checkpoint or difference, wherever it lies, and git does not see it. Where
// the sandbox or its rollback is of the whole directory, a state directory in it is refused before anything runs.
func TestCase_B7(t *testing.T) {
	for _, place := range []struct {
		name   string
		inside bool
		state  func(t *testing.T, p *place, dir string) *place
	}{
		{"Inside", true, func(_ *testing.T, p *place, dir string) *place {
			return p.with("WARMFLEET_STATE_DIR=" + filepath.Join(dir, ".data"))
		}},
		{"ThroughALink", true, func(t *testing.T, p *place, dir string) *place {
			must(t, os.Symlink(filepath.Join(dir, "sub"), p.path("link")))
			return p.with("WARMFLEET_STATE_DIR=" + p.path("link", "data"))
		}},
		{"HomeIsTheTarget", true, func(_ *testing.T, p *place, dir string) *place {
			return p.without("HOME").without("XDG_STATE_HOME").without("XDG_CONFIG_HOME").with("HOME=" + dir)
		}},
		{"DefaultsThere", false, func(_ *testing.T, p *place, _ string) *place { return p }},
	} {
		for _, strategy := range strategies {
			t.Run(place.name+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				p := newPlace(t, ordinary(t))
				dir := p.tree(t, "d", "git init -q -b trunk .; mkdir sub; echo one >f; echo s >sub/s; git add -A; "+gitIdentity+"commit -qm one")
				q := place.state(t, p, dir)
				q.cwd = dir
				if place.inside && strategy != "git_worktree" {
					ownDataIsRefused(t, q, dir, strategy)
				} else {
					ownDataStaysOut(t, q, dir, strategy)
				}
				if got := p.sh(t, dir, "git status --porcelain -uall | grep -v '^?? [fg]' || true"); got != "" {
					t.Errorf("git status of the original:\n%s", got)
				}
			})
		}
	}
}

func ownDataIsRefused(t *testing.T, p *place, dir, strategy string) {
	r := p.warmfleet(t, "run", p.plan(t, "strategy: "+strategy+"\napply: auto", "echo x >f"), "--path", ".", "-o", "json").exits(t, 2)
	v := r.view(t)
	if v.State != events.StateFailed || !strings.Contains(deref(v.Error), "--state-dir") || strings.Contains(deref(v.Error), "\n") {
		t.Errorf("state %s, error %q: want one line that says what to do", v.State, deref(v.Error))
	}
	if v.Steps[0].State != events.StepSkipped || read(t, dir, "f") != "one\n" {
		t.Errorf("the step is %s and f is %q, want nothing to have run", v.Steps[0].State, read(t, dir, "f"))
	}
}

func ownDataStaysOut(t *testing.T, p *place, dir, strategy string) {
	own := func(listing string) bool {
		return strings.Contains(listing, "data") || strings.Contains(listing, ".local")
	}
	var sizes []int64
	for i := range 2 {
		file := p.planOf(t, "strategy: "+strategy+"\napply: auto", "{id: one, checkpoint: true, run: "+quoted(fmt.Sprintf("ls -A . sub; echo x >f%d", i))+"}", `{id: two, run: "echo x >g"}`)
		v := p.warmfleet(t, "run", file, "--path", ".", "-o", "json").exits(t, 0).view(t)
		var size int64
		for _, c := range v.Checkpoints {
			size = max(size, c.SizeBytes)
		}
		sizes = append(sizes, size)
		if saw := p.do(t, "warmfleet", "plan", "logs", v.ID, "--step", "one"); own(saw) {
			t.Errorf("round %d: the step saw\n%s", i, saw)
		}
		if got := p.do(t, "warmfleet", "plan", "diff", v.ID, "-o", "name"); strings.Trim(got, "fg01\n") != "" {
			t.Errorf("round %d: changed: %q, want f%d and g at most", i, got, i)
		}
		if got := p.sh(t, dir, "warmfleet checkpoint export "+v.Checkpoints[0].ID+" | tar -t | grep -v '^./.git/'"); own(got) {
			t.Errorf("round %d: a checkpoint has\n%s", i, got)
		}
	}
	if first, last := sizes[0], sizes[len(sizes)-1]; last > first+2000 {
		t.Errorf("the largest checkpoint of each round: %v bytes, want them not to grow", sizes)
	}
}
