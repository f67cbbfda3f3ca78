//go:build fault

package faults

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// scenarios pass every point of taking, storing, restoring and applying, on every strategy.
func scenarios() []scenario {
	applies := `  - {run: ` + fleettest.Quoted(crashOne) + `, checkpoint: true}
  - {run: ` + fleettest.Quoted(crashTwo) + `}
`
	fails := `  - {run: ` + fleettest.Quoted(crashOne) + `, checkpoint: true}
  - {run: ` + fleettest.Quoted(crashTwo+"; exit 3") + `, retry: {limit: 1, on: ["exit:3"]}}
`
	var all []scenario
	for _, strategy := range []string{"copy_on_write", "none", "git_worktree"} {
		all = append(all, scenario{name: "Apply", strategy: strategy, head: "apply: auto", steps: applies, state: events.StateApplied})
	}
	for _, strategy := range fleettest.Strategies() {
		all = append(all, scenario{name: "RollBack", strategy: strategy, head: "apply: auto", steps: fails, state: events.StateFailed})
	}
	return append(all, scenario{
		name: "Approved", strategy: "copy_on_write", head: "apply: manual", steps: applies, state: events.StateApplied, approved: true,
	}, scenario{
		name: "Sweep", strategy: "copy_on_write", head: "apply: auto", steps: applies, state: events.StateApplied, dies: "checkpoint.frozen:1",
	})
}

// TestCrash_EveryPoint runs each scenario once and records which points it passes, then once for each of them with a
// worker that is killed there. A new worker on the same state directory has to bring every plan to the same end.
func TestCrash_EveryPoint(t *testing.T) {
	t.Run(fleettest.Self().Name, func(t *testing.T) { sweepCrashes(t, newCrashRig(t, fleettest.Self()), scenarios(), chosen) })
	if os.Getuid() != 0 {
		return
	}
	// Files are made and mounted in another way by an ordinary user; all else is the same.
	t.Run("AsNobody", func(t *testing.T) {
		sweepCrashes(t, newCrashRig(t, fleettest.Ordinary(t)), []scenario{scenarios()[0], scenarios()[3]}, func(all []point, swept map[string]bool) []point {
			return slices.DeleteFunc(chosen(all, swept), func(p point) bool {
				return p.n > 1 || !slices.Contains([]string{"layer", "restore", "apply"}, strings.Split(p.name, ".")[0])
			})
		})
	})
}

// recorded is what the clean run of a scenario showed.
type recorded struct {
	scenario
	points []point
	after  layertest.Snapshot
	// unnamed is how many layers without a stored name were left in the cache: kills leave no more.
	unnamed int
}

func sweepCrashes(t *testing.T, r *crashRig, all []scenario, choose func(all []point, swept map[string]bool) []point) {
	var kills []killing
	swept := map[string]bool{}
	for _, s := range all {
		rec := r.record(t, s)
		for _, p := range choose(rec.points, swept) {
			name := s.name + "-" + s.strategy + "-" + strings.NewReplacer(":", "-", ".", "-").Replace(p.String())
			kills = append(kills, killing{rec, p, r.prepare(t, s, name)})
		}
	}
	r.execute(t, kills)
	t.Run("Killed", func(t *testing.T) {
		for _, k := range kills {
			t.Run(k.run.worker, func(t *testing.T) {
				t.Parallel()
				k.run.killedAt(t, k.recorded, k.at)
			})
		}
	})
	r.wholeStore(t)
}

// killing is a run whose worker is to be killed at a point.
type killing struct {
	recorded
	at  point
	run *crashRun
}

// execute lets another worker run the steps of those plans of which only the apply is to be killed.
func (r *crashRig) execute(t *testing.T, kills []killing) {
	t.Helper()
	first := r.Start(t, "first", "worker", "--name", "first", "--state-dir", r.Path("first"), "--slots", "4",
		"--allow-path", r.Path("work"), "--host-id", crashHost).Ready(t)
	for _, k := range kills {
		if k.approved {
			k.run.submit(t)
		}
	}
	for _, k := range kills {
		if k.approved {
			r.Until(t, k.run.id, "approval to be awaited", fleettest.IsType(events.TypeAwaitingApproval))
		}
	}
	first.Signal(t, syscall.SIGTERM)
	first.Exit(t, fleettest.Patience)
}

// record runs a scenario without a fault.
func (r *crashRig) record(t *testing.T, s scenario) recorded {
	t.Helper()
	run := r.prepare(t, s, s.name+"-"+s.strategy)
	if s.approved {
		r.execute(t, []killing{{recorded{scenario: s}, point{}, run}})
	}
	run.dieBefore(t)
	trace := filepath.Join(r.Path("tmp"), run.worker)
	w, ready := run.start(t, "WARMFLEET_FAULT_TRACE="+trace)
	if !ready {
		t.Fatalf("%s does not start", run.worker)
	}
	run.begin(t)
	if !run.finished(t, w) {
		t.Fatalf("%s died", run.worker)
	}
	run.stop(t, w)
	rec := recorded{scenario: s, points: passages(t, trace), after: fleettest.Snapshot(t, run.dir), unnamed: len(run.unnamed(t))}
	run.judge(t, rec)
	return rec
}

// killedAt runs a scenario with a worker that is killed at a point, and then with another.
func (r *crashRun) killedAt(t *testing.T, rec recorded, p point) {
	r.dieBefore(t)
	w, ready := r.start(t, "WARMFLEET_FAULT="+p.String()+":kill")
	if ready {
		r.begin(t)
		ended := r.finished(t, w)
		if ended { // a point behind the last event
			fleettest.Eventually(t, "the worker to die", func() bool {
				select {
				case <-w.Ended:
					return true
				default:
					return false
				}
			})
		}
	}
	if ws := w.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() {
		t.Fatalf("the worker ended with exit code %d, not by a signal", ws.ExitStatus())
	}
	next, started := r.start(t)
	if !started {
		t.Fatal("the worker does not start again")
	}
	if !ready { // it was killed before there was a plan
		r.begin(t)
	}
	if !r.finished(t, next) {
		t.Fatal("the second worker died")
	}
	r.stop(t, next)
	r.judge(t, rec)
	if left := r.unnamed(t); len(left) > rec.unnamed {
		t.Errorf("the cache holds %d layers that nobody can find again, without a kill %d: %v", len(left), rec.unnamed, left)
	}
	if !t.Failed() {
		fleettest.RemoveAll(t, r.dir)
		fleettest.RemoveAll(t, r.state)
	}
}

// judge looks at how a run ended: one final event, and the original exactly as it is to be.
func (r *crashRun) judge(t *testing.T, rec recorded) {
	t.Helper()
	v := events.BuildView(r.Records(t, r.id))
	if v.State != r.scenario.state {
		t.Errorf("got state %s, want %s\n%s", v.State, r.scenario.state, r.Story(t, r.id))
	}
	if n := r.Count(t, r.id, fleettest.IsFinal); n != 1 {
		t.Errorf("%d final events, want 1\n%s", n, r.Story(t, r.id))
	}
	want, o := r.before, layertest.Options{}
	if r.scenario.state == events.StateApplied {
		want, o.NoDirTimes = r.nonced(rec.after), true // the kernel gives the times of directories
	}
	o.NoHoles = r.strategy == "git_worktree" // git maps files, and on tmpfs that fills their holes
	if d := layertest.Diff(fleettest.Snapshot(t, r.dir), want, o); d != "" {
		t.Errorf("the original (-got +want):\n%s", fleettest.Tail(d, 4000))
	}
}

// nonced is what another run of the scenario left, with this run's own content in the place of that one's. No plan
// changes anything in .git.
func (r *crashRun) nonced(after layertest.Snapshot) layertest.Snapshot {
	inGit := func(path string, _ layertest.Node) bool { return path == ".git" || strings.HasPrefix(path, ".git/") }
	want := maps.Clone(after)
	maps.DeleteFunc(want, inGit)
	for path, n := range r.before {
		if inGit(path, n) {
			want[path] = n
		}
	}
	for _, name := range []string{"nonce", "nonce2", "nonce3"} {
		n := want[name]
		n.Digest = r.before["nonce"].Digest
		want[name] = n
	}
	return want
}

// wholeStore fails the test if a checkpoint's record names something that is not in the store, or if a sweep that
// waits for nothing leaves something that no record names, or takes more than that.
func (r *crashRig) wholeStore(t *testing.T) {
	t.Helper()
	sweeper := r.Fleet.Store.(objectstore.Sweeper)
	for range 2 {
		r.readable(t)
		if _, err := sweeper.Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := sweeper.Sweep(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("a sweep after a sweep removed %d things, %v", n, err)
	}
}

// readable reads everything that the records name.
func (r *crashRig) readable(t *testing.T) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), r.Fleet.Checkpoints)
	fleettest.Must(t, err)
	var objects []string
	for _, cp := range records {
		for _, ref := range slices.Concat(cp.Base, cp.Layers) {
			objects = append(objects, ref.Name)
		}
		if cp.Delta != "" {
			objects = append(objects, cp.Delta)
		}
		if len(cp.Base) == 0 && cp.Phase != checkpoint.PreApply {
			t.Errorf("the record of %s checkpoint %s names no base", cp.Phase, cp.ID)
		}
	}
	if len(objects) == 0 {
		t.Error("no record names anything")
	}
	slices.Sort(objects)
	for _, name := range slices.Compact(objects) {
		f, err := r.Fleet.Store.Get(t.Context(), name)
		if err == nil {
			_, err = io.Copy(io.Discard, f)
			f.Close()
		}
		if err != nil {
			t.Errorf("a record names %s: %v", name, err)
		}
	}
}
