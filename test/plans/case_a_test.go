package plans

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// applyFor is the line of a plan file that leaves the original alone where a strategy allows that.
func applyFor(strategy string) string {
	if strategy == "none" {
		return "apply: auto"
	}
	return "apply: never"
}

// listScript prints every path of the current directory with kind, mode, link text and hash.
const listScript = `
list() {
  find . -path ./.git -prune -o -print | LC_ALL=C sort | while IFS= read -r f; do
    if [ -L "$f" ]; then echo "$f link $(readlink "$f")"
    elif [ -d "$f" ]; then stat -c '%n dir %a' "$f"
    elif [ -f "$f" ]; then echo "$(stat -c '%n file %a' "$f") $(sha256sum <"$f")"
    else stat -c '%n %F %a' "$f"; fi
  done
}
`

// twice is a step that lists the tree, changes it and fails; its second try starts from the tree before the first.
func twice(change string) string {
	return "{id: twice, retry: {limit: 1}, run: " + fleettest.Quoted(listScript+"echo ==; list\n"+change+"\nexit 75\n") + "}"
}

// listings are what the two tries of the step twice printed.
func listings(t *testing.T, p *fleettest.Cluster, id string) []string {
	t.Helper()
	out := p.Do(t, "warmfleet", "plan", "logs", id, "--step", "twice")
	parts := strings.Split(out, "==\n")
	if len(parts) != 3 || parts[1] == "" {
		t.Fatalf("want two listings, got %q", out)
	}
	return parts[1:]
}

func TestCase_A1(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) { rollsBackExactly(t, c, strategy) })
		}
	})
}

func rollsBackExactly(t *testing.T, p *fleettest.Cluster, strategy string) {
	dir := p.Tree(t, "a1-"+strategy, `
git init -q -b trunk .; echo v1 >tracked; chmod 640 tracked; echo cache/ >.gitignore
git add -A; `+fleettest.GitIdentity+`commit -qm one
mkdir out cache; seq 1000 >out/data.jsonl; echo precious >cache/x`)
	before := fleettest.Snapshot(t, dir)
	ensure := "mkdir -p out cache; [ -e out/data.jsonl ] || seq 1000 >out/data.jsonl; [ -e cache/x ] || echo precious >cache/x; echo one >first"
	file := p.PlanOf(t, "strategy: "+strategy+"\n"+applyFor(strategy),
		"{id: ensure, checkpoint: true, run: "+fleettest.Quoted(ensure)+"}",
		twice("echo v2 >tracked; chmod 600 tracked; rm -r cache; mkdir -p new/a; echo b >new/a/b.txt; rm out/data.jsonl; mkdir out/data.jsonl"))
	v := p.Warmfleet(t, "run", file, "--path", dir, "-o", "json").Exits(t, 3).View(t)
	tries := listings(t, p, v.ID)
	if tries[0] != tries[1] {
		t.Errorf("the second try began with\n%s\nthe first with\n%s", tries[1], tries[0])
	}
	fleettest.Unchanged(t, dir, before)
	exported := p.Export(t, stepCheckpoint(t, v))
	if got := p.Sh(t, exported, listScript+"list"); got != tries[0] {
		t.Errorf("exported checkpoint\n%s\nthe tree it was taken of\n%s", got, tries[0])
	}
}

// stepCheckpoint is the id of a plan's first step checkpoint.
func stepCheckpoint(t testing.TB, v events.View) string {
	t.Helper()
	for _, c := range v.Checkpoints {
		if c.Phase == events.PhaseStep && c.Portable {
			return c.ID
		}
	}
	t.Fatalf("plan %s has no portable step checkpoint: %+v", v.ID, v.Checkpoints)
	return ""
}

// Case A2 below the command line, where a restored sandbox can be looked into and gone on with.
func TestCase_A2(t *testing.T) {
	t.Parallel()
	first := sandboxtest.New(t)
	second := sandboxtest.Beside(t, first)
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"base": "b\n"})
	chain, _ := first.Base(t, dir)
	box := first.Sandbox(t, chain)
	first.Manager.Adopt(box, len(chain))

	one := changed(t, first, box, "echo 1 >f")
	changed(t, first, box, "echo 2 >f")
	other := restored(t, second, one)
	newest := changed(t, second, other, "grep -q 1 f; echo 3 >g")
	fleettest.Must(t, other.Close()) // the worker is gone, and all that only it had

	box = restored(t, first, newest)
	if got, want := sandboxtest.Run(t, box, "cat f g; ls"), "1\n3\nbase\nf\ng\n"; got != want {
		t.Errorf("the newest checkpoint: got %q, want %q", got, want)
	}
	fleettest.Must(t, first.Manager.RollbackTo(t.Context(), checkpoint.Checkpoint{ID: one, SandboxID: box.ID()}))
	if got, want := sandboxtest.Run(t, box, "cat f; ls"), "1\nbase\nf\n"; got != want {
		t.Errorf("the first checkpoint once more: got %q, want %q", got, want)
	}
}

// changed runs a script in a sandbox and returns the stored checkpoint after it.
func changed(t *testing.T, bed *sandboxtest.Bed, box *sandbox.Sandbox, script string) string {
	t.Helper()
	sandboxtest.Run(t, box, script)
	cp, err := bed.Manager.Create(t.Context(), box, events.NewID(), checkpoint.Step, nil)
	fleettest.Must(t, err)
	cp, err = bed.Manager.Store(t.Context(), cp.ID)
	fleettest.Must(t, err)
	return cp.ID
}

func restored(t *testing.T, bed *sandboxtest.Bed, id string) *sandbox.Sandbox {
	t.Helper()
	r, err := bed.Manager.Restore(t.Context(), id)
	fleettest.Must(t, err)
	box := bed.Sandbox(t, r.Chain)
	bed.Manager.Adopt(box, r.BaseLayers)
	return box
}

func TestCase_A4(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, p *fleettest.Cluster) {
		top := p.Tree(t, "a4", `
mkdir main; cd main; `+fleettest.GitScript+`
git worktree add -q ../linked -b linked
git clone -q --bare . ../bare.git
mkdir ../two; git clone -q . ../two/x; git clone -q . ../two/y
mkdir ../super; cd ../super; git init -q -b trunk .; git -c protocol.file.allow=always submodule add -q ../main sub
`+fleettest.GitIdentity+`commit -qm sub`)
		for _, shape := range []struct{ name, dir, refused string }{
			{"LinkedWorktree", "linked", ""},
			{"Submodule", "super/sub", ""},
			{"TwoClones", "two", "git_worktree"},
			{"Bare", "bare.git", "none"},
		} {
			for _, strategy := range fleettest.Strategies() {
				t.Run(shape.name+"/"+strategy, func(t *testing.T) {
					unusualTarget(t, p, filepath.Join(top, shape.dir), strategy, strategy == shape.refused)
				})
			}
		}
	})
}

func unusualTarget(t *testing.T, p *fleettest.Cluster, dir, strategy string, refused bool) {
	before := fleettest.Snapshot(t, dir)
	file := p.PlanOf(t, "strategy: "+strategy+"\n"+applyFor(strategy),
		`{id: one, checkpoint: true, run: "echo 1 >one.txt"}`, twice("rm one.txt; echo 2 >two.txt"))
	r := p.Warmfleet(t, "run", file, "--path", dir, "-o", "json")
	v := r.View(t)
	defer fleettest.Unchanged(t, dir, before)
	if !refused {
		r.Exits(t, 3)
		if tries := listings(t, p, v.ID); tries[0] != tries[1] {
			t.Errorf("the second try began with\n%s\nthe first with\n%s", tries[1], tries[0])
		}
		return
	}
	r.Exits(t, 2)
	if v.Error == nil || !strings.Contains(*v.Error, strategy) || !strings.Contains(*v.Error, dir) || strings.Contains(*v.Error, "\n") {
		t.Errorf("error %v: want one line that names %s and %s", v.Error, strategy, dir)
	}
	for _, s := range v.Steps {
		if s.State != events.StepSkipped {
			t.Errorf("step %s is %s, want none to start", s.ID, s.State)
		}
	}
}

const a5Script = `
mkdir -p logs v1; echo keep >v1/f; ln -s v1/ cur; ln -s nowhere x
printf '#!/bin/sh\n' >run.sh; chmod 755 run.sh; chmod 750 logs`

func TestCase_A5(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, p *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) {
				dir := p.Tree(t, "a5-"+strategy, a5Script+"\ngit init -q -b trunk .; git add -A; "+fleettest.GitIdentity+"commit -qm one")
				before := fleettest.Snapshot(t, dir)
				file := p.PlanOf(t, "strategy: "+strategy+"\n"+applyFor(strategy),
					`{id: logs, run: "mkdir -p logs; chmod 750 logs; ls logs"}`,
					twice("rm -r logs cur x run.sh; for n in logs cur x run.sh; do echo file >$n; done; chmod 600 run.sh"))
				v := p.Warmfleet(t, "run", file, "--path", dir, "-o", "json").Exits(t, 3).View(t)
				tries := listings(t, p, v.ID)
				if tries[0] != tries[1] {
					t.Errorf("the second try began with\n%s\nthe first with\n%s", tries[1], tries[0])
				}
				for _, line := range []string{"./logs dir 750\n", "./cur link v1/\n", "./x link nowhere\n", "./run.sh file 755 "} {
					if !strings.Contains(tries[1], line) {
						t.Errorf("after the rollback %q is missing in\n%s", line, tries[1])
					}
				}
				if d := layertest.Diff(fleettest.Snapshot(t, dir), before, layertest.Options{}); d != "" {
					t.Errorf("the original changed:\n%s", d)
				}
			})
		}
	})
}
