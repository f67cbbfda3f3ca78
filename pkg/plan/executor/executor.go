// Package executor runs the steps of a plan in a sandbox, in order, with a checkpoint at
// each phase, retries from the tree before the step, and rollback on failure.
//
// It knows plans, sandboxes through small interfaces, and the types of events it appends.
// It must not know queues, claims, apply, or where checkpoints are kept.
package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/mask"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// CheckpointAfter is how long a step must have run to get a `step` checkpoint unasked.
const CheckpointAfter = time.Second

// ErrNeedsCheckpoints is returned for a plan that works in place and is to be rolled back
// on failure when there is no checkpoint manager.
var ErrNeedsCheckpoints = errors.New("executor: strategy none with on_failure rollback needs checkpoints")

// ErrInterrupted is returned when Stop was closed: the plan can go on elsewhere from its last
// portable checkpoint, which was taken for it where a step had finished.
var ErrInterrupted = errors.New("executor: interrupted between steps")

// ErrCancelled is the cause a caller cancels the context with when the plan was cancelled.
var ErrCancelled = errors.New("executor: plan cancelled")

// Sandbox is where steps run.
type Sandbox interface {
	checkpoint.Sandbox
	// BaseEnv is the environment every command needs, as NAME=value.
	BaseEnv() []string
	Exec(ctx context.Context, c isolate.Command) (isolate.Result, error)
	Files
}

// Files is what file steps do in a sandbox; see the methods of isolate.Init.
type Files interface {
	ReadFile(ctx context.Context, path string, limit int64) (content []byte, mode fs.FileMode, err error)
	WriteFile(ctx context.Context, w isolate.FileWrite) error
	LookAt(ctx context.Context, path string, limit int64) (content []byte, mode fs.FileMode, err error)
	ChangeFiles(ctx context.Context, list []isolate.FileChange) error
}

// Checkpoints is the optional dependency on a checkpoint manager.
type Checkpoints interface {
	Create(ctx context.Context, s checkpoint.Sandbox, planID string, phase checkpoint.Phase, metadata map[string]string) (checkpoint.Checkpoint, error)
	// Describe stores the difference of a checkpoint from its base and returns it.
	Describe(ctx context.Context, id string) (checkpoint.Delta, error)
	Store(ctx context.Context, id string) (checkpoint.Checkpoint, error)
	RollbackTo(ctx context.Context, cp checkpoint.Checkpoint) error
}

// Events is where facts are appended; an error ends the run and nothing more is changed.
type Events interface {
	Append(ctx context.Context, typ string, d events.Data) error
}

// Output takes what a step prints. Close returns when all of it is stored, or ctx ends.
type Output interface {
	io.Writer
	Close(ctx context.Context) error
}

// Config is one run of one plan.
type Config struct {
	PlanID  string
	Plan    *plan.Plan
	Sandbox Sandbox
	Events  Events
	// Checkpoints may be nil: then every hook is skipped.
	Checkpoints Checkpoints
	// Start is the pre_execute checkpoint that a failure goes back to.
	Start checkpoint.Checkpoint
	// From is the index of the first step to run; those before it are done.
	From int
	// Output returns where the bytes of one try of a step go, in order; nil drops them.
	Output func(step, try int) Output
	// Bash tells whether bash is there for steps; else they run under sh.
	Bash bool
	// Secrets are the files that run steps see, by name; Mask hides them in output and messages. Both may be nil.
	Secrets map[string][]byte
	Mask    *mask.Set
	// Grace is how long a step may take to end after SIGTERM; isolate.DefaultGrace if zero.
	Grace time.Duration
	// Stop, when closed, ends the run with ErrInterrupted before the next step.
	Stop <-chan struct{}
	Log  zerolog.Logger
}

// Outcome is how a run ended. "Your step failed" is an outcome; "I could not run it" is an error.
type Outcome struct {
	// Failed is nil when every step succeeded or was allowed to fail.
	Failed *Failure
	// Post is the stored post_execute checkpoint and Delta what it changed; only on success
	// and only with Checkpoints.
	Post  checkpoint.Checkpoint
	Delta checkpoint.Delta
}

// Failure says which step failed and how.
type Failure struct {
	Step       string
	Index      int
	Result     isolate.Result
	Message    string
	RolledBack string
	// Kept is the checkpoint of the failed tree under on_failure keep.
	Kept checkpoint.Checkpoint
}

// Run runs the plan's steps from cfg.From on. Errors are: the context's cause when it was
// cancelled, what Events returned, or a sandbox or checkpoint that did not work.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	if cfg.Checkpoints == nil && cfg.Plan.Strategy == plan.InPlace && cfg.Plan.OnFailure == plan.Rollback {
		return Outcome{}, ErrNeedsCheckpoints
	}
	r := &run{Config: cfg}
	failed, err := r.steps(ctx)
	uploads := r.wait()
	if err != nil {
		return Outcome{}, err
	}
	if uploads != nil {
		return Outcome{}, uploads
	}
	if failed != nil {
		return r.fail(context.WithoutCancel(ctx), failed)
	}
	return r.conclude(ctx)
}

// run is the state of one Run.
type run struct {
	Config
	uploads  sync.WaitGroup
	uploadMu sync.Mutex
	uploadEr error
}

// steps runs them within the plan's timeout; checkpoints are not counted against it.
func (r *run) steps(ctx context.Context) (*Failure, error) {
	limited, stop := context.WithTimeout(ctx, time.Duration(r.Plan.Timeout))
	defer stop()
	for i := r.From; i < len(r.Plan.Steps); i++ {
		if r.stopped() {
			return nil, ErrInterrupted
		}
		step := r.Plan.Steps[i]
		res, msg, err := r.step(limited, i)
		if ctx.Err() == nil && limited.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
			res.Cause, msg, err = isolate.CauseTimeout, r.overdue(), nil
		}
		if err != nil {
			return nil, err
		}
		if !succeeded(res) && (!step.ContinueOnError || limited.Err() != nil) {
			return &Failure{Step: step.ID, Index: i, Result: res, Message: msg}, nil
		}
		if err := r.afterStep(ctx, i, res); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// overdue is what people read about a plan that took longer than it may.
func (r *run) overdue() string { return fmt.Sprintf("plan timeout of %s reached", r.Plan.Timeout) }

// step runs one step with its retries.
func (r *run) step(ctx context.Context, i int) (isolate.Result, string, error) {
	step := r.Plan.Steps[i]
	before, err := r.beforeRetry(ctx, i)
	if err != nil {
		return isolate.Result{}, "", err
	}
	for try := 1; ; try++ {
		res, msg, err := r.try(ctx, i, try)
		if err != nil || succeeded(res) || ctx.Err() != nil || try >= step.Retry.Tries() || !step.Retry.Matches(string(res.Cause), res.ExitCode, res.Signal) {
			return res, msg, err
		}
		if before != nil {
			if err := r.Checkpoints.RollbackTo(ctx, *before); err != nil {
				return res, msg, err
			}
		}
		err = r.Events.Append(ctx, events.TypeRolledBack, events.Data{Step: step.ID, StepIndex: &i, Try: try, RolledBack: "sandbox", Reason: "retry"})
		if err != nil {
			return res, msg, err
		}
		if err := pause(ctx, step.Retry.Delay(try+1)); err != nil {
			return res, msg, err
		}
	}
}

// beforeRetry keeps the tree before a step that may be tried again.
func (r *run) beforeRetry(ctx context.Context, i int) (*checkpoint.Checkpoint, error) {
	if r.Plan.Steps[i].Retry == nil || r.Checkpoints == nil {
		return nil, nil
	}
	cp, err := r.Checkpoints.Create(ctx, r.Sandbox, r.PlanID, checkpoint.Step, map[string]string{"before": r.Plan.Steps[i].ID})
	return &cp, err
}

// try runs a step once, between its two events.
func (r *run) try(ctx context.Context, i, try int) (isolate.Result, string, error) {
	step := r.Plan.Steps[i]
	if err := r.Events.Append(ctx, events.TypeStepStarted, events.Data{Step: step.ID, StepIndex: &i, Try: try}); err != nil {
		return isolate.Result{}, "", err
	}
	r.network() // what was before is not this step's
	res, msg, err := r.perform(ctx, i, try)
	use, more := r.network()
	msg = r.Mask.Text(msg)
	if err != nil {
		return res, msg, err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return res, msg, cause
	}
	if ctx.Err() != nil {
		res.Cause, msg = isolate.CauseTimeout, r.overdue()
	}
	ms, state := res.Duration.Milliseconds(), "succeeded"
	if !succeeded(res) {
		state, msg = "failed", withDenied(msg, use)
	}
	err = r.Events.Append(context.WithoutCancel(ctx), events.TypeStepFinished, events.Data{
		Step: step.ID, StepIndex: &i, Try: try, State: state, Error: msg,
		ExitCode: res.ExitCode, Signal: res.Signal, Cause: string(res.Cause), DurationMS: &ms, Network: use, NetworkMore: more,
	})
	return res, msg, err
}

// afterStep takes the step checkpoint where one is due and uploads it beside the next step.
func (r *run) afterStep(ctx context.Context, i int, res isolate.Result) error {
	step := r.Plan.Steps[i]
	last := i == len(r.Plan.Steps)-1 // post_execute follows at once
	if r.Checkpoints == nil || !(step.Checkpoint || !last && (res.Duration >= CheckpointAfter || r.stopped())) {
		return nil
	}
	cp, err := r.Checkpoints.Create(ctx, r.Sandbox, r.PlanID, checkpoint.Step, map[string]string{"step": step.ID})
	if err != nil {
		return err
	}
	r.uploads.Go(func() { r.upload(ctx, cp, i) })
	return nil
}

func (r *run) upload(ctx context.Context, cp checkpoint.Checkpoint, i int) {
	stored, err := r.Checkpoints.Store(ctx, cp.ID)
	if err != nil {
		// The plan goes on: only a take-over would have used it, and starts further back now.
		r.Log.Warn().Err(err).Str("checkpoint", cp.ID).Msg("step checkpoint not portable")
		return
	}
	err = r.Events.Append(ctx, events.TypeCheckpointed, events.Data{Step: r.Plan.Steps[i].ID, StepIndex: &i, Checkpoint: Ref(stored, i+1)})
	if err != nil {
		r.uploadMu.Lock()
		r.uploadEr = err
		r.uploadMu.Unlock()
	}
}

func (r *run) stopped() bool {
	select {
	case <-r.Stop:
		return true
	default:
		return false
	}
}

func (r *run) wait() error {
	r.uploads.Wait()
	r.uploadMu.Lock()
	defer r.uploadMu.Unlock()
	return r.uploadEr
}

// fail brings the sandbox back, or keeps the failed tree, as the plan wants.
func (r *run) fail(ctx context.Context, f *Failure) (Outcome, error) {
	if r.Checkpoints == nil {
		return Outcome{Failed: f}, nil
	}
	if r.Plan.OnFailure == plan.Keep {
		kept, err := r.Checkpoints.Create(ctx, r.Sandbox, r.PlanID, checkpoint.Step, map[string]string{"step": f.Step, "failed": "true"})
		if err == nil {
			kept, err = r.Checkpoints.Store(ctx, kept.ID)
		}
		if err != nil {
			return Outcome{}, err
		}
		f.Kept = kept // `failed` names it: an event of its own would be where another worker goes on
		return Outcome{Failed: f}, nil
	}
	if err := r.Checkpoints.RollbackTo(ctx, r.Start); err != nil {
		return Outcome{}, err
	}
	f.RolledBack = "sandbox"
	if r.Plan.Strategy == plan.InPlace {
		f.RolledBack = "original"
	}
	return Outcome{Failed: f}, nil
}

// conclude takes the post_execute checkpoint, stored before it is announced.
func (r *run) conclude(ctx context.Context) (Outcome, error) {
	if r.Checkpoints == nil {
		return Outcome{}, nil
	}
	cp, err := r.Checkpoints.Create(ctx, r.Sandbox, r.PlanID, checkpoint.PostExecute, nil)
	if err != nil {
		return Outcome{}, err
	}
	delta, err := r.Checkpoints.Describe(ctx, cp.ID)
	if err != nil {
		return Outcome{}, err
	}
	if cp, err = r.Checkpoints.Store(ctx, cp.ID); err != nil {
		return Outcome{}, err
	}
	err = r.Events.Append(ctx, events.TypeCheckpointed, events.Data{Checkpoint: Ref(cp, len(r.Plan.Steps))})
	return Outcome{Post: cp, Delta: delta}, err
}

// Ref is how events speak of a checkpoint after which the step of index cursor runs next.
func Ref(cp checkpoint.Checkpoint, cursor int) *events.CheckpointRef {
	ref := &events.CheckpointRef{
		ID: cp.ID, Phase: string(cp.Phase), SizeBytes: cp.SizeBytes, Portable: cp.Portable, Live: cp.Live, Cursor: cursor, Lost: len(cp.Lost),
	}
	if n := len(cp.Layers); n > 0 && cp.SizeBytes > 0 {
		ref.Object = cp.Layers[n-1].Name
	}
	return ref
}

func succeeded(r isolate.Result) bool {
	return r.Cause == isolate.CauseExit && r.ExitCode != nil && *r.ExitCode == 0
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
