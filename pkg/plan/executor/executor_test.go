package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/executor"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

func TestMain(m *testing.M) {
	isolate.Main()
	os.Exit(m.Run())
}

// rig is one plan ready to run on real parts, with its log in memory.
type rig struct {
	bed *sandboxtest.Bed
	box *sandbox.Sandbox
	log *events.MemoryLog
	cfg executor.Config

	mu  sync.Mutex
	out map[string]*bytes.Buffer
}

// sink collects what one try of a step prints.
type sink struct {
	r   *rig
	key string
}

func (s sink) Write(p []byte) (int, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.r.out[s.key].Write(p)
}

func (s sink) Close(context.Context) error { return nil }

func newRig(t *testing.T, steps string) *rig {
	t.Helper()
	p, err := plan.ParseYAML("test.yaml", []byte("version: 1\nname: t\nresource: {path: /srv, host: h}\n"+steps))
	if err != nil {
		t.Fatal(err)
	}
	p.Defaults()
	subjects, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{bed: sandboxtest.New(t), log: events.NewMemoryLog(subjects), out: map[string]*bytes.Buffer{}}
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "one\n", "d/b": "two\n"})
	chain, _ := r.bed.Base(t, dir)
	r.box = r.bed.Sandbox(t, chain)
	r.bed.Manager.Adopt(r.box, len(chain))
	id := events.NewID()
	w := claimed(t, r.log, id, p)
	start, err := r.bed.Manager.Create(t.Context(), r.box, id, checkpoint.PreExecute, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.cfg = executor.Config{
		PlanID: id, Plan: p, Sandbox: r.box, Events: w, Checkpoints: r.bed.Manager, Start: start, Bash: true, Log: zerolog.Nop(),
		Output: func(step, try int) executor.Output {
			r.mu.Lock()
			defer r.mu.Unlock()
			key := fmt.Sprintf("%d.%d", step, try)
			r.out[key] = &bytes.Buffer{}
			return sink{r, key}
		},
	}
	return r
}

// claimed is the writer of a plan that was accepted and claimed.
func claimed(t *testing.T, log events.Log, id string, p *plan.Plan) *events.Writer {
	t.Helper()
	w, err := events.OpenWriter(t.Context(), log, id, "/worker/test")
	if err != nil {
		t.Fatal(err)
	}
	err = w.Append(t.Context(), events.TypeAccepted, events.Data{Body: p.Canonical(), Plan: &events.Fold{Strategy: string(p.Strategy), Apply: string(p.Apply), Created: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Claim(t.Context(), events.Data{Worker: "test"}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (r *rig) run(t *testing.T) executor.Outcome {
	t.Helper()
	out, err := executor.Run(t.Context(), r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// facts are the plan's events after the claim, as short lines.
func (r *rig) facts(t *testing.T) (lines []string) {
	t.Helper()
	records, err := r.log.Events(t.Context(), r.cfg.PlanID)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range records[2:] {
		d := rec.Event.Data
		line := rec.Event.Kind()
		if d.Step != "" {
			line += " " + d.Step
		}
		if d.State != "" {
			line += " " + d.State
		}
		if d.Checkpoint != nil {
			line += " " + d.Checkpoint.Phase
		}
		lines = append(lines, line)
	}
	return lines
}

func TestRun_Succeeds(t *testing.T) {
	r := newRig(t, `
identity: {name: "D'Author", email: a@example.com}
inputs: {pkg: {default: "x y"}}
env: {A: plan}
steps:
  - {id: hello, run: 'echo "$A $WARMFLEET_INPUT_PKG $GIT_AUTHOR_NAME"; pwd; printf tail', env: {A: step}}
  - write_file: {path: conf/x.toml, content: "x = 1\n", mode: "0640"}
  - edit: {path: a, old: "one", new: "uno"}
  - {id: soft, run: exit 3, continue_on_error: true}
`)
	got := r.run(t)
	if got.Failed != nil {
		t.Fatalf("failed: %+v", got.Failed)
	}
	if out, want := r.out["0.1"].String(), "step x y D'Author\n/workspace\ntail"; out != want {
		t.Errorf("output %q, want %q", out, want)
	}
	var paths []string
	for _, c := range got.Delta.Changes {
		paths = append(paths, string(c.Path))
	}
	if d := cmp.Diff([]string{"a", "conf", "conf/x.toml"}, paths); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	if !got.Post.Portable || got.Post.Delta == "" {
		t.Errorf("post_execute %+v, want it stored with its delta", got.Post)
	}
	want := []string{
		"step_started hello", "step_finished hello succeeded", "step_started step-2", "step_finished step-2 succeeded",
		"step_started step-3", "step_finished step-3 succeeded", "step_started soft", "step_finished soft failed", "checkpointed post_execute",
	}
	if d := cmp.Diff(want, r.facts(t)); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

func TestRun_FailureRollsBack(t *testing.T) {
	r := newRig(t, `
steps:
  - {id: first, run: "echo x >new; rm -r d", checkpoint: true}
  - {id: bad, run: "echo y >a; exit 7"}
  - {id: never, run: "true"}
`)
	got := r.run(t)
	f := got.Failed
	if f == nil || f.Step != "bad" || f.Result.ExitCode == nil || *f.Result.ExitCode != 7 || f.Message != "exit code 7" || f.RolledBack != "sandbox" {
		t.Fatalf("failed: %+v", f)
	}
	if tree, want := sandboxtest.Run(t, r.box, "cat a d/b; ls"), "one\ntwo\na\nd\n"; tree != want {
		t.Errorf("tree after the failure %q, want %q", tree, want)
	}
}

func TestRun_FailureKeeps(t *testing.T) {
	r := newRig(t, "on_failure: keep\nsteps:\n  - {id: bad, run: 'echo y >a; exit 7'}\n")
	got := r.run(t)
	if got.Failed == nil || !got.Failed.Kept.Portable {
		t.Fatalf("failed: %+v, want a stored tree", got.Failed)
	}
	if tree := sandboxtest.Run(t, r.box, "cat a"); tree != "y\n" {
		t.Errorf("tree %q, want it as the step left it", tree)
	}
	// Another worker must not go on from a tree that a failed step left.
	if d := cmp.Diff([]string{"step_started bad", "step_finished bad failed"}, r.facts(t)); d != "" {
		t.Errorf("facts (-want +got):\n%s", d)
	}
}

func TestRun_RetryStartsFromTheTreeBefore(t *testing.T) {
	r := newRig(t, `
steps:
  - {run: echo before >f}
  - id: flaky
    run: test ! -e marker; echo try >>f; touch marker; exit 75
    retry: {limit: 2, on: ["exit:75"]}
`)
	got := r.run(t)
	if got.Failed == nil || *got.Failed.Result.ExitCode != 75 {
		t.Fatalf("failed: %+v, want exit code 75 at every try: the marker of a try is gone at the next", got.Failed)
	}
	want := []string{
		"step_started step-1", "step_finished step-1 succeeded",
		"step_started flaky", "step_finished flaky failed", "rolled_back flaky",
		"step_started flaky", "step_finished flaky failed", "rolled_back flaky",
		"step_started flaky", "step_finished flaky failed",
	}
	if d := cmp.Diff(want, r.facts(t)); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

func TestRun_StepCheckpointIsAnnouncedWhenStored(t *testing.T) {
	r := newRig(t, "steps:\n  - {id: one, run: echo 1 >f, checkpoint: true}\n  - {id: two, run: echo 2 >g}\n")
	r.run(t)
	records, err := r.log.Events(t.Context(), r.cfg.PlanID)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range records {
		cp := rec.Event.Data.Checkpoint
		if cp == nil || cp.Phase != events.PhaseStep {
			continue
		}
		if !cp.Portable || cp.Cursor != 1 || cp.SizeBytes == 0 {
			t.Errorf("step checkpoint %+v, want it portable, of size, with cursor 1", cp)
		}
		if _, err := checkpoint.Load(t.Context(), r.bed.Records, cp.ID); err != nil {
			t.Errorf("its record: %v", err)
		}
		return
	}
	t.Error("no step checkpoint was announced")
}

func TestRun_FromSkipsWhatIsDone(t *testing.T) {
	r := newRig(t, "steps:\n  - {id: one, run: echo 1 >f}\n  - {id: two, run: echo 2 >g}\n")
	r.cfg.From = 1
	r.run(t)
	if tree := sandboxtest.Run(t, r.box, "ls"); tree != "a\nd\ng\n" {
		t.Errorf("tree %q, want only the second step's file", tree)
	}
}

func TestRun_Cancel(t *testing.T) {
	r := newRig(t, "steps:\n  - {id: long, run: 'echo started; sleep 300'}\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	r.cfg.Output = func(int, int) executor.Output { return trigger(func() { cancel(executor.ErrCancelled) }) }
	start := time.Now()
	_, err := executor.Run(ctx, r.cfg)
	if !errors.Is(err, executor.ErrCancelled) {
		t.Errorf("error %v, want %v", err, executor.ErrCancelled)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
}

// trigger calls itself at the first byte of output.
type trigger func()

func (f trigger) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

func (f trigger) Close(context.Context) error { return nil }

func TestRun_StopInterruptsBetweenSteps(t *testing.T) {
	r := newRig(t, "steps:\n  - {id: one, run: echo 1 >f}\n  - {id: two, run: echo 2 >g}\n")
	stop := make(chan struct{})
	r.cfg.Stop = stop
	r.cfg.Output = func(int, int) executor.Output { return trigger(func() {}) }
	r.cfg.Output = func(int, int) executor.Output {
		select {
		case <-stop:
		default:
			close(stop)
		}
		return trigger(func() {})
	}
	_, err := executor.Run(t.Context(), r.cfg)
	if !errors.Is(err, executor.ErrInterrupted) {
		t.Fatalf("error %v, want %v", err, executor.ErrInterrupted)
	}
	want := []string{"step_started one", "step_finished one succeeded", "checkpointed one step"}
	if d := cmp.Diff(want, r.facts(t)); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

func TestRun_Timeouts(t *testing.T) {
	for name, steps := range map[string]string{
		"Step":                       "steps:\n  - {run: sleep 300, timeout: 300ms}\n",
		"Plan":                       "timeout: 400ms\nsteps:\n  - {run: sleep 300}\n",
		"PlanDuringAStepThatMayFail": "timeout: 400ms\nsteps:\n  - {run: sleep 300, continue_on_error: true}\n  - {run: 'true'}\n",
		"PlanDuringBackoff":          "timeout: 400ms\nsteps:\n  - {run: exit 75, retry: {limit: 2, on: ['exit:75'], backoff: 1m}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			got := newRig(t, steps).run(t)
			f := got.Failed
			if f == nil || f.Index != 0 || f.Result.Cause != isolate.CauseTimeout || f.Result.ExitCode != nil && *f.Result.ExitCode == 0 || !strings.Contains(f.Message, "timeout") {
				t.Errorf("failed: %+v, want a timeout", f)
			}
		})
	}
}

func TestRun_FileSteps(t *testing.T) {
	for _, tc := range []struct{ name, step, message string }{
		{"EditMissing", `edit: {path: nope, old: a, new: b}`, `edit "nope": `},
		{"EditCount", `edit: {path: a, old: "x", new: "y", count: 2}`, `edit "a": the old text occurs 0 times, count says 2: nothing was changed`},
		{"WriteExpect", `write_file: {path: a, content: "z", expect_sha256: "` + strings.Repeat("0", 64) + `"}`, `write_file "a": content is sha256 `},
		{"WriteOverDirectory", `write_file: {path: d, content: "z"}`, `write_file "d": `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, "steps:\n  - "+tc.step+"\n")
			f := r.run(t).Failed
			if f == nil || f.Result.Cause != isolate.CauseStart || f.Result.ExitCode != nil || !strings.HasPrefix(f.Message, tc.message) {
				t.Errorf("failed: %+v, want a message that begins %q", f, tc.message)
			}
			if tree := sandboxtest.Run(t, r.box, "cat a d/b"); tree != "one\ntwo\n" {
				t.Errorf("tree %q, want it unchanged", tree)
			}
		})
	}
}

func TestRun_WithoutCheckpoints(t *testing.T) {
	r := newRig(t, "steps:\n  - {run: echo 1 >f, checkpoint: true}\n")
	r.cfg.Checkpoints = nil
	if got := r.run(t); got.Failed != nil || got.Post.ID != "" {
		t.Errorf("outcome %+v, want success without a checkpoint", got)
	}
	r.cfg.Plan.Strategy, r.cfg.Plan.OnFailure = plan.InPlace, plan.Rollback
	if _, err := executor.Run(t.Context(), r.cfg); !errors.Is(err, executor.ErrNeedsCheckpoints) {
		t.Errorf("in place with rollback: %v, want %v", err, executor.ErrNeedsCheckpoints)
	}
}
