package worker

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

func TestWorker_Run(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	for _, tc := range []struct {
		name, plan, state, code, rolledBack string
		left                                string // what `a` of the original holds afterwards
	}{
		{"Never", "apply: never\nsteps: [{run: echo new >a}]\n", events.StateExecuted, "", "", "one\n"},
		{"Fails", "apply: auto\nsteps: [{run: echo new >a; exit 3}]\n", events.StateFailed, "step_failed", "sandbox", "one\n"},
		{"FailsInPlace", "strategy: none\napply: auto\nsteps: [{run: echo new >a; exit 3}]\n", events.StateFailed, "step_failed", "original", "one\n"},
		{"NothingToApply", "steps: [{run: cat a}]\n", events.StateApplied, "", "", "one\n"},
		{"Auto", "apply: auto\nsteps: [{run: echo two >a}]\n", events.StateApplied, "", "", "two\n"},
		{"InPlace", "strategy: none\napply: auto\nsteps: [{run: echo three >a}]\n", events.StateApplied, "", "", "three\n"},
		{"InPlaceKept", "strategy: none\napply: auto\non_failure: keep\nsteps: [{run: echo four >a; exit 3}]\n", events.StateFailed, "step_failed", "", "four\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := r.submit(t, tc.plan)
			d := r.ends(t, w.PlanID(), tc.state)
			if d.Code != tc.code || d.RolledBack != tc.rolledBack {
				t.Errorf("code %q, rolled back %q, want %q, %q: %s", d.Code, d.RolledBack, tc.code, tc.rolledBack, d.Error)
			}
			r.has(t, "a", tc.left)
		})
	}
	if _, err := os.Lstat(filepath.Join(r.tree, string(layer.JournalDir))); !os.IsNotExist(err) {
		t.Errorf("the journal is left in the original: %v", err)
	}
}

func TestWorker_Approval(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.worker(t, "w1")
	applied, clashes := r.submit(t, "steps: [{run: echo new >a}]\n"), r.submit(t, "steps: [{run: echo mine >d/b}]\n")
	for _, w := range []*events.Writer{applied, clashes} {
		r.ends(t, w.PlanID(), events.StateAwaitingApproval)
	}
	r.has(t, "a", "one\n")
	stop()
	r.worker(t, "w2") // everything it needs is stored
	r.write(t, "d/b", "theirs\n")
	r.approve(t, applied)
	if d := r.ends(t, applied.PlanID(), events.StateApplied); d.Changed == nil || *d.Changed != 1 {
		t.Errorf("changed %v, want 1", d.Changed)
	}
	r.has(t, "a", "new\n")
	r.approve(t, clashes)
	d := r.ends(t, clashes.PlanID(), events.StateConflict)
	file := func(content string) *events.FileState {
		return &events.FileState{Type: "file", Mode: "0644", Size: int64(len(content)), SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(content)))}
	}
	if diff := cmp.Diff([]events.Conflict{{Path: "d/b", Kind: "content", Base: file("two\n"), Ours: file("mine\n"), Theirs: file("theirs\n")}}, d.Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	r.has(t, "d/b", "theirs\n")
}

// The base of a plan that awaits approval is not lost to the plans that run meanwhile.
func TestWorker_ApprovalAfterTheBaseMovedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	w := r.submit(t, "steps: [{run: echo new >a}]\n")
	r.ends(t, w.PlanID(), events.StateAwaitingApproval)
	for i := range 12 { // more than an image's chain may have layers
		r.write(t, "d/b", strings.Repeat("x", i+1))
		other := r.submit(t, "apply: never\nsteps: [{run: cat d/b}]\n")
		r.ends(t, other.PlanID(), events.StateExecuted)
	}
	r.approve(t, w)
	r.ends(t, w.PlanID(), events.StateApplied)
	r.has(t, "a", "new\n")
}

func TestWorker_Cancel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, plan, rolledBack string }{
		{"Sandbox", "steps: [{run: echo new >a; sleep 300}]\n", "sandbox"},
		{"InPlace", "strategy: none\napply: auto\nsteps: [{run: echo new >a; sleep 300}]\n", "original"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.worker(t, "w1")
			w := r.submit(t, tc.plan)
			id := w.PlanID()
			r.until(t, id, "a step", ofKind(events.TypeStepStarted))
			r.append(t, w, events.TypeCancelRequested, events.Data{By: "test"})
			if err := r.fleet.Conn.Publish(r.fleet.Subjects.Control("cancel", id), []byte(id)); err != nil {
				t.Fatal(err)
			}
			asked := time.Now()
			if d := r.ends(t, id, events.StateCancelled); d.RolledBack != tc.rolledBack {
				t.Errorf("rolled back %q, want %q", d.RolledBack, tc.rolledBack)
			}
			if took := time.Since(asked); took > cancelPoll*3/4 {
				t.Errorf("cancelled after %v: the hint was not heard", took)
			}
			r.has(t, "a", "one\n")
		})
	}
}

func TestWorker_HintAloneCancelsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	w := r.submit(t, "apply: never\nsteps: [{run: sleep 0.5}, {run: 'true'}]\n")
	id := w.PlanID()
	r.until(t, id, "a step", ofKind(events.TypeStepStarted))
	if err := r.fleet.Conn.Publish(r.fleet.Subjects.Control("cancel", id), []byte(id)); err != nil {
		t.Fatal(err)
	}
	r.ends(t, id, events.StateExecuted)
}

func TestWorker_Refusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	other := t.TempDir()
	for _, tc := range []struct{ name, plan, code string }{
		{"NotAllowed", "resource: {path: " + other + ", host: h1}\nsteps: [{run: 'true'}]\n", "path_not_allowed"},
		{"Gone", "resource: {path: " + r.tree + "/gone, host: h1}\nsteps: [{run: 'true'}]\n", "invalid_resource"},
		{"NoRepository", "strategy: git_worktree\nsteps: [{run: 'true'}]\n", "invalid_strategy"},
		{"LocalRepoNotAllowed", "resource: {repo: " + other + "}\napply: never\nsteps: [{run: 'true'}]\n", "path_not_allowed"},
		{"CommitWithoutGit", "commit: {message: m}\nsteps: [{run: 'true'}]\n", "invalid_resource"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := r.submit(t, tc.plan)
			d := r.ends(t, w.PlanID(), events.StateFailed)
			if d.Code != tc.code || d.Error == "" {
				t.Errorf("code %q, want %q: %s", d.Code, tc.code, d.Error)
			}
		})
	}
}

// The second worker goes on after the last portable checkpoint; the first one's late facts are refused.
func TestWorker_TakeOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js := eventstest.Connect(t, r.server)
	run(t, r.make(t, "lost", r.open(t, js)))
	w := r.submit(t, "steps: [{run: echo x >made, checkpoint: true}, {run: cat made; sleep 300}]\n")
	id := w.PlanID()
	r.until(t, id, "a portable checkpoint", func(e events.Event) bool {
		return e.Kind() == events.TypeCheckpointed && e.Data.Checkpoint.Portable
	})
	js.Conn().Close()
	r.worker(t, "heir")
	seen := r.until(t, id, "the heir's step", func(e events.Event) bool {
		return e.Kind() == events.TypeStepStarted && e.Source == "/worker/heir"
	})
	last := seen[len(seen)-1].Data
	if *last.StepIndex != 1 || last.Epoch != 2 || last.Attempt != 2 || last.Plan.Losses != 1 {
		t.Errorf("step %d of epoch %d, attempt %d, %d losses: want 1, 2, 2, 1", *last.StepIndex, last.Epoch, last.Attempt, last.Plan.Losses)
	}
	r.append(t, w, events.TypeCancelRequested, events.Data{By: "test"})
	r.ends(t, id, events.StateCancelled)
}

func TestWorker_DrainHandsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.worker(t, "first")
	w := r.submit(t, "apply: never\nsteps: [{run: echo x >made; sleep 0.3}, {run: cat made}]\n")
	id := w.PlanID()
	r.until(t, id, "a step", ofKind(events.TypeStepStarted))
	stop()
	r.worker(t, "second")
	seen := r.until(t, id, "its end", func(e events.Event) bool { return e.Data.Final })
	last := seen[len(seen)-1]
	if last.Kind() != events.TypeExecuted || last.Data.Plan.Losses != 0 || count(seen, events.TypeInterrupted) != 1 {
		t.Errorf("%s after %d losses and %d interruptions, want executed, 0, 1", last.Kind(), last.Data.Plan.Losses, count(seen, events.TypeInterrupted))
	}
	if got := count(seen, events.TypeStepStarted); got != 2 {
		t.Errorf("%d steps were started, want each once", got)
	}
}

func TestWorker_CommandOfNoPlanIsSetAside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	r.command(t, events.VerbRun, events.NewID())
	r.setAside(t)
}

// What is mounted below an original could not be brought back, so nothing works in place on it.
func TestWorker_InPlaceAboveAMount(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts")
	}
	r := newRig(t)
	below := filepath.Join(r.tree, "d e")
	r.write(t, "d e/f", "under\n")
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(below, 0); err != nil {
			t.Error(err)
		}
	})
	r.write(t, "d e/g", "kept\n")
	r.worker(t, "w1")
	p := r.submit(t, "strategy: none\napply: auto\nsteps: [{run: rm -rf ./*}]\n")
	if d := r.ends(t, p.PlanID(), events.StateFailed); d.Code != "invalid_resource" || !strings.Contains(d.Error, below) {
		t.Errorf("code %q, want invalid_resource and %s: %s", d.Code, below, d.Error)
	}
	r.has(t, "d e/g", "kept\n")
}

// The same path of another host is another directory, whoever published the command here.
func TestWorker_PlanOfAnotherHostIsSetAside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	p := r.submit(t, "resource: {path: "+r.tree+", host: elsewhere}\napply: auto\nsteps: [{run: rm a}]\n")
	r.setAside(t)
	if fold, err := p.Refresh(t.Context()); err != nil || fold.State != events.StateAccepted {
		t.Errorf("state %q, %v, want it accepted still", fold.State, err)
	}
	r.has(t, "a", "one\n")
}

// setAside waits for the one dead letter.
func (r *rig) setAside(t *testing.T) {
	t.Helper()
	dead := events.NewDeadLetters(r.js, r.fleet.Subjects)
	for end := time.Now().Add(patience); ; {
		letters, err := dead.List(t.Context())
		if err == nil && len(letters) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d letters, %v, want 1", len(letters), err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestWorker_Rollback(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	w := r.submit(t, "apply: never\nsteps: [{run: echo new >a}]\n")
	id := w.PlanID()
	seen := r.until(t, id, "its end", func(e events.Event) bool { return e.Data.Final })
	pre, post := "", ""
	for _, e := range seen {
		switch e.Kind() {
		case events.TypeClaimed:
			pre = e.Data.Checkpoint.ID
		case events.TypeCheckpointed:
			post = e.Data.Checkpoint.ID
		}
	}
	for _, tc := range []struct{ name, checkpoint, code string }{
		{"PreExecute", pre, ""},
		{"PostExecute", post, ""},
		{"Unknown", events.NewID(), api.CodeNotFound},
		{"NoID", "x/../y", api.CodeInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := json.Marshal(api.Rollback{Checkpoint: tc.checkpoint})
			if err != nil {
				t.Fatal(err)
			}
			m, err := r.fleet.Conn.Request(r.fleet.Subjects.Worker("w1", "rollback"), b, patience)
			if err != nil {
				t.Fatal(err)
			}
			if got := m.Header.Get(micro.ErrorCodeHeader); got != tc.code {
				t.Fatalf("code %q, want %q: %s", got, tc.code, m.Header.Get(micro.ErrorHeader))
			}
			var reply api.RolledBack
			if tc.code == "" {
				if err := json.Unmarshal(m.Data, &reply); err != nil || reply.Worker != "w1" || reply.State != "active" {
					t.Errorf("reply %+v, %v", reply, err)
				}
			}
		})
	}
}

func TestConfig_Validate(t *testing.T) {
	good := Config{Name: "w-1", HostID: "h1", Slots: 1, AllowPaths: []string{"/srv"}}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		says   string
	}{
		{"Good", func(*Config) {}, ""},
		{"Name", func(c *Config) { c.Name = "host.example" }, "name"},
		{"Slots", func(c *Config) { c.Slots = 0 }, "slots"},
		{"Isolation", func(c *Config) { c.Isolation = "requried" }, "isolation"},
		{"Layers", func(c *Config) { c.Layers = "overlayfs" }, "layers"},
		{"Pool", func(c *Config) { c.Pools = []string{"h-1"} }, "pools"},
		{"NoHostID", func(c *Config) { c.HostID = "" }, "host-id"},
		{"HostID", func(c *Config) { c.HostID = "a.b" }, "host-id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := good
			tc.change(&c)
			err := c.Validate()
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that names %q", err, tc.says)
			}
			if err == nil && c.Isolation != Required {
				t.Errorf("isolation %q by default, want %q", c.Isolation, Required)
			}
		})
	}
}
