package plans

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

func TestBadInput_Plans(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	dir := p.Tree(t, "d", "echo x >f")
	before := fleettest.Snapshot(t, dir)
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
			file := p.Path("home", tt.name+".yaml")
			p.Write(t, file, tt.text)
			r := p.Warmfleet(t, "run", file, "--path", dir, "--cgroups", "none")
			if tt.name == "GitStrategy" || tt.name == "AbsentLimit" { // it takes the fleet to find out
				r.Exits(t, tt.code)
				for _, word := range tt.words {
					if !strings.Contains(r.Stderr, word) {
						t.Errorf("got %q, want %q in it", r.Stderr, word)
					}
				}
				return
			}
			r.OneLine(t, tt.code, tt.words...)
		})
	}
	fleettest.Unchanged(t, dir, before)
}

func TestBadInput_Surroundings(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	dir := p.Tree(t, "d", "echo x >f")
	file := p.Plan(t, "apply: never", "true")
	nowhere := "nats://127.0.0.1:9"
	for _, tt := range []struct {
		name  string
		args  []string
		code  int
		words []string
	}{
		{"NoFile", []string{"run", p.Path("absent.yaml")}, 2, []string{"absent.yaml"}},
		{"NoServer", []string{"run", file, "--path", dir, "-s", nowhere}, 8, []string{"127.0.0.1:9"}},
		{"NoServerList", []string{"plan", "ls", "-s", nowhere}, 8, []string{"127.0.0.1:9"}},
		{"NoDirectory", []string{"run", file, "--path", p.Path("absent")}, 2, []string{p.Path("absent")}},
		{"NoCommand", []string{"plan", "frobnicate"}, 2, []string{"frobnicate"}},
		{"NoFlag", []string{"run", file, "--frobnicate"}, 2, []string{"frobnicate"}},
		{"NoPlan", []string{"plan", "show", events.NewID()}, 4, []string{"not found"}},
		{"NoID", []string{"plan", "show", "../../x"}, 2, []string{"../../x"}},
		{"NoCheckpoint", []string{"checkpoint", "show", events.NewID()}, 4, []string{"not found"}},
		{"NoWorker", []string{"worker", "show", "nobody"}, 4, []string{"nobody"}},
	} {
		t.Run(tt.name, func(t *testing.T) { p.Warmfleet(t, tt.args...).OneLine(t, tt.code, tt.words...) })
	}
}

func TestBadInput_PathNotAllowed(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	fleettest.Must(t, os.Mkdir(c.Path("work", "d"), 0o755))
	fleettest.Must(t, os.Symlink(c.Path("home"), c.Path("work", "d", "link")))
	for _, dir := range []string{"/etc", c.Path("home"), c.Path("work", "d", "link")} {
		file := c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true")
		r := c.Warmfleet(t, "submit", file, "--wait", "-o", "json").Exits(t, 5)
		if v := r.View(t); v.State != events.StateRejected || fleettest.Deref(v.Code) != "path_not_allowed" || !strings.Contains(fleettest.Deref(v.Error), "--allow-path") {
			t.Errorf("%s: state %s, code %q, error %q", dir, v.State, fleettest.Deref(v.Code), fleettest.Deref(v.Error))
		}
	}
	c.Env = append(c.Env, "NATS_PASSWORD=wrong")
	c.Warmfleet(t, "plan", "ls").OneLine(t, 5, "127.0.0.1")
}

// A full disk fails the plan with that reason, loses nothing, and the worker goes on when there is room again.
func TestBadInput_FullDisk(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	disk := c.Place.SmallDisk(t, "24m")
	w := c.Start(t, "w", "worker", "--name", "w", "--state-dir", filepath.Join(disk, "w"), "--allow-path", c.Path("work")).Ready(t)
	t.Cleanup(func() { w.Kill(t) })
	dir := c.Tree(t, "d", "echo x >f")
	before := fleettest.Snapshot(t, dir)
	for _, script := range []string{"head -c 60000000 /dev/urandom >big", "head -c 60000000 /dev/urandom >big || true; echo y >f"} {
		id := c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), script))
		v := c.Ends(t, id)
		if v.State != events.StateFailed || !strings.Contains(fleettest.Deref(v.Error)+c.Do(t, "warmfleet", "plan", "logs", id), "pace") {
			t.Errorf("state %s, error %q, want failed for lack of space\n%s", v.State, fleettest.Deref(v.Error), c.Story(t, id))
		}
		fleettest.Unchanged(t, dir, before)
		next := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "echo y >f"))
		c.Ended(t, next, events.StateExecuted)
	}
}

// A layer whose bytes changed in the store is never presented as good.
func TestBadInput_CorruptLayer(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	wa := c.Worker(t, "wa")
	dir := c.Tree(t, "d", "echo x >f")
	file := c.Plan(t, "apply: manual\n"+fleettest.Resource(dir), "head -c 300000 /dev/urandom >big")
	id := c.Submit(t, file)
	c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	cp := c.Count(t, id, fleettest.IsType(events.TypeCheckpointed))
	if cp != 1 {
		t.Fatalf("%d checkpoints", cp)
	}
	e := c.Until(t, id, "post_execute", fleettest.IsType(events.TypeCheckpointed))
	corrupt(t, c, e.Data.Checkpoint.Object)
	wa.Kill(t)
	before := fleettest.Snapshot(t, dir)
	c.Worker(t, "wb") // has no copy of its own

	c.Warmfleet(t, "checkpoint", "export", e.Data.Checkpoint.ID).OneLine(t, 1, "corrupt")
	c.Warmfleet(t, "checkpoint", "rollback", e.Data.Checkpoint.ID, "--worker", "wb").OneLine(t, 1, "corrupt")
	c.Warmfleet(t, "checkpoint", "diff", e.Data.Checkpoint.ID).OneLine(t, 1, "corrupt")
	c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.Ended(t, id, events.StateFailed)
	if !strings.Contains(fleettest.Deref(v.Error), "corrupt") {
		t.Errorf("error %q does not say that the layer is corrupt", fleettest.Deref(v.Error))
	}
	if d := layertest.Diff(fleettest.Snapshot(t, dir), before, layertest.Options{NoDirTimes: true}); d != "" {
		t.Errorf("the original changed:\n%s", d)
	}
}

// corrupt replaces a stored layer by one of the same size with a byte changed.
func corrupt(t *testing.T, c *fleettest.Cluster, object string) {
	t.Helper()
	store, err := c.Fleet.JetStream.ObjectStore(t.Context(), c.Fleet.Subjects.LayersBucket())
	fleettest.Must(t, err)
	b, err := store.GetBytes(t.Context(), object)
	fleettest.Must(t, err)
	b = bytes.Clone(b)
	b[len(b)/2] ^= 1
	fleettest.Must(t, store.Delete(context.WithoutCancel(t.Context()), object))
	_, err = store.PutBytes(t.Context(), object, b)
	fleettest.Must(t, err)
}
