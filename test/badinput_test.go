package test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// oneLine fails the test unless a command said what is wrong in one line that holds all words.
func (r result) oneLine(t *testing.T, code int, words ...string) {
	t.Helper()
	var lines []string
	for _, l := range strings.Split(strings.TrimSpace(r.stderr), "\n") {
		if strings.HasPrefix(l, "warmfleet:") {
			lines = append(lines, l)
		}
	}
	if r.code != code || len(lines) != 1 {
		t.Fatalf("got exit code %d and %d lines, want %d and one line\nstderr: %s", r.code, len(lines), code, r.stderr)
	}
	for _, w := range words {
		if !strings.Contains(lines[0], w) {
			t.Errorf("%q does not say %q", lines[0], w)
		}
	}
}

func TestBadInput_Plans(t *testing.T) {
	t.Parallel()
	p := newPlace(t, ordinary(t))
	dir := p.tree(t, "d", "echo x >f")
	before := snapshot(t, dir)
	for _, tt := range []struct {
		name, text string
		code       int
		words      []string
	}{
		{"UnknownKey", "version: 1\nstepz: []\nsteps: [{run: x}]\n", 2, []string{"stepz", ":2:", "steps"}},
		{"TwoKinds", "version: 1\nsteps:\n  - run: x\n    edit: {path: a, old: b, new: c}\n", 2, []string{"run", "edit", ":4:"}},
		{"NoSteps", "version: 1\n", 2, []string{"steps"}},
		{"NotYAML", "version: [1\n", 2, []string{":"}},
		{"Version", "version: 2\nsteps: [{run: x}]\n", 2, []string{"version", "1"}},
		{"Leaves", "version: 1\nsteps:\n  - write_file: {path: ../x, content: y}\n", 2, []string{"../x", ":3:"}},
		{"NotBuiltYet", "version: 1\nkey: k\nsteps: [{run: x}]\n", 10, []string{"key", "not serialised"}},
		{"AbsentLimit", "version: 1\nlimits: {cpu_cores: 1}\nsteps: [{run: x}]\n", 10, []string{"cpu", "control groups", "--isolation preferred"}},
		{"TooLarge", "version: 1\nsteps: [{write_file: {path: a, content: " + strings.Repeat("x", 600_000) + "}}]\n", 2, []string{"524288"}},
		{"GitStrategy", "version: 1\nstrategy: git_worktree\nsteps: [{run: x}]\n", 2, []string{"git_worktree", dir}},
		{"BadApply", "version: 1\nstrategy: none\napply: manual\nsteps: [{run: x}]\n", 2, []string{"apply", ":3:"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := p.path("home", tt.name+".yaml")
			p.write(t, file, tt.text)
			r := p.warmfleet(t, "run", file, "--path", dir, "--cgroups", "none")
			if tt.name == "GitStrategy" || tt.name == "AbsentLimit" { // it takes the fleet to find out
				r.exits(t, tt.code)
				for _, word := range tt.words {
					if !strings.Contains(r.stderr, word) {
						t.Errorf("got %q, want %q in it", r.stderr, word)
					}
				}
				return
			}
			r.oneLine(t, tt.code, tt.words...)
		})
	}
	unchanged(t, dir, before)
}

func TestBadInput_Surroundings(t *testing.T) {
	t.Parallel()
	p := newPlace(t, ordinary(t))
	dir := p.tree(t, "d", "echo x >f")
	file := p.plan(t, "apply: never", "true")
	nowhere := "nats://127.0.0.1:9"
	for _, tt := range []struct {
		name  string
		args  []string
		code  int
		words []string
	}{
		{"NoFile", []string{"run", p.path("absent.yaml")}, 2, []string{"absent.yaml"}},
		{"NoServer", []string{"run", file, "--path", dir, "-s", nowhere}, 8, []string{"127.0.0.1:9"}},
		{"NoServerList", []string{"plan", "ls", "-s", nowhere}, 8, []string{"127.0.0.1:9"}},
		{"NoDirectory", []string{"run", file, "--path", p.path("absent")}, 2, []string{p.path("absent")}},
		{"NoCommand", []string{"plan", "frobnicate"}, 2, []string{"frobnicate"}},
		{"NoFlag", []string{"run", file, "--frobnicate"}, 2, []string{"frobnicate"}},
		{"NoPlan", []string{"plan", "show", events.NewID()}, 4, []string{"not found"}},
		{"NoID", []string{"plan", "show", "../../x"}, 2, []string{"../../x"}},
		{"NoCheckpoint", []string{"checkpoint", "show", events.NewID()}, 4, []string{"not found"}},
		{"NoWorker", []string{"worker", "show", "nobody"}, 4, []string{"nobody"}},
	} {
		t.Run(tt.name, func(t *testing.T) { p.warmfleet(t, tt.args...).oneLine(t, tt.code, tt.words...) })
	}
}

func TestBadInput_PathNotAllowed(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	c.worker(t, "w")
	must(t, os.Mkdir(c.path("work", "d"), 0o755))
	must(t, os.Symlink(c.path("home"), c.path("work", "d", "link")))
	for _, dir := range []string{"/etc", c.path("home"), c.path("work", "d", "link")} {
		file := c.plan(t, "apply: never\n"+resource(dir), "true")
		r := c.warmfleet(t, "submit", file, "--wait", "-o", "json").exits(t, 5)
		if v := r.view(t); v.State != events.StateRejected || deref(v.Code) != "path_not_allowed" || !strings.Contains(deref(v.Error), "--allow-path") {
			t.Errorf("%s: state %s, code %q, error %q", dir, v.State, deref(v.Code), deref(v.Error))
		}
	}
	c.env = append(c.env, "NATS_PASSWORD=wrong")
	c.warmfleet(t, "plan", "ls").oneLine(t, 5, "127.0.0.1")
}

// A full disk fails the plan with that reason, loses nothing, and the worker goes on when there is room again.
func TestBadInput_FullDisk(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	disk := smallDisk(t, c.place, "24m")
	w := c.start(t, "w", "worker", "--name", "w", "--state-dir", filepath.Join(disk, "w"), "--allow-path", c.path("work")).ready(t)
	t.Cleanup(func() { w.kill(t) })
	dir := c.tree(t, "d", "echo x >f")
	before := snapshot(t, dir)
	for _, script := range []string{"head -c 60000000 /dev/urandom >big", "head -c 60000000 /dev/urandom >big || true; echo y >f"} {
		id := c.submit(t, c.plan(t, "apply: auto\n"+resource(dir), script))
		v := c.ends(t, id)
		if v.State != events.StateFailed || !strings.Contains(deref(v.Error)+c.do(t, "warmfleet", "plan", "logs", id), "pace") {
			t.Errorf("state %s, error %q, want failed for lack of space\n%s", v.State, deref(v.Error), c.story(t, id))
		}
		unchanged(t, dir, before)
		next := c.submit(t, c.plan(t, "apply: never\n"+resource(dir), "echo y >f"))
		c.ended(t, next, events.StateExecuted)
	}
}

// A layer whose bytes changed in the store is never presented as good.
func TestBadInput_CorruptLayer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	wa := c.worker(t, "wa")
	dir := c.tree(t, "d", "echo x >f")
	file := c.plan(t, "apply: manual\n"+resource(dir), "head -c 300000 /dev/urandom >big")
	id := c.submit(t, file)
	c.until(t, id, "awaiting approval", isType(events.TypeAwaitingApproval))
	cp := c.count(t, id, isType(events.TypeCheckpointed))
	if cp != 1 {
		t.Fatalf("%d checkpoints", cp)
	}
	e := c.until(t, id, "post_execute", isType(events.TypeCheckpointed))
	c.corrupt(t, e.Data.Checkpoint.Object)
	wa.kill(t)
	before := snapshot(t, dir)
	c.worker(t, "wb") // has no copy of its own

	c.warmfleet(t, "checkpoint", "export", e.Data.Checkpoint.ID).oneLine(t, 1, "corrupt")
	c.warmfleet(t, "checkpoint", "rollback", e.Data.Checkpoint.ID, "--worker", "wb").oneLine(t, 1, "corrupt")
	c.warmfleet(t, "checkpoint", "diff", e.Data.Checkpoint.ID).oneLine(t, 1, "corrupt")
	c.do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.ended(t, id, events.StateFailed)
	if !strings.Contains(deref(v.Error), "corrupt") {
		t.Errorf("error %q does not say that the layer is corrupt", deref(v.Error))
	}
	if d := layertest.Diff(snapshot(t, dir), before, layertest.Options{NoDirTimes: true}); d != "" {
		t.Errorf("the original changed:\n%s", d)
	}
}

// corrupt replaces a stored layer by one of the same size with a byte changed.
func (c *cluster) corrupt(t *testing.T, object string) {
	t.Helper()
	store, err := c.fleet.JetStream.ObjectStore(t.Context(), c.fleet.Subjects.LayersBucket())
	must(t, err)
	b, err := store.GetBytes(t.Context(), object)
	must(t, err)
	b = bytes.Clone(b)
	b[len(b)/2] ^= 1
	must(t, store.Delete(context.WithoutCancel(t.Context()), object))
	_, err = store.PutBytes(t.Context(), object, b)
	must(t, err)
}
