package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/mask"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/executor"
)

// cancelPoll bounds how long a cancel goes unnoticed when the hint that it came was lost.
const cancelPoll = 2 * time.Second

// settleLimit bounds the wait for the server's answer to an ack: the client itself would wait
// for ever for one that was lost with its connection.
const settleLimit = 5 * time.Second

// errNoPlan is a command for a plan that the log does not know, or no longer.
var errNoPlan = errors.New("worker: no such plan")

// errMisrouted is a command for a path of another host: here the same path is something else.
var errMisrouted = errors.New("worker: plan of another host")

// busyDelay is when a command comes again whose plan this worker is just done with.
const busyDelay = 100 * time.Millisecond

// job is one delivery being worked on.
type job struct {
	id     string
	cmd    events.Command
	writer *events.Writer
	plan   *plan.Plan
	git    bool   // the resource is a git work tree, or a remote repository
	path   string // its real path, "" for a repository URL
	cancel context.CancelCauseFunc
	hint   chan struct{} // holds one token when somebody said that a cancel was requested
	stuck  bool          // the original was left changed in place: it could not be rolled back
	// secrets are what the plan's run steps find as files, and mask hides them in what is shown.
	secrets map[string][]byte
	mask    *mask.Set
	tidy    bool // an apply of this job ended, so nothing of the plan is left beside the original's files
}

// pull takes commands of one pool while there are free slots, until ctx ends or its queue is gone. What it
// started goes on with life.
func (w *Worker) pull(ctx, life context.Context, pool string) {
	for ctx.Err() == nil {
		if w.reserve.Wait(ctx) != nil || !w.awaitSlot(ctx) {
			return
		}
		got, err := w.fleet.Queue.Pull(ctx, events.Pull{Pool: pool, Max: 1, Priority: w.priority(pool), Wait: w.cfg.PullWait})
		if errors.Is(err, events.ErrNoPool) {
			return
		}
		if err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Str("pool", pool).Msg("pull commands")
			if sleep(ctx, time.Second) != nil {
				return
			}
		}
		for _, d := range got {
			if ctx.Err() != nil {
				w.nak(life, d, 0)
				continue
			}
			w.take(life, d)
		}
	}
}

// take works on a delivery if a slot is still free, else gives it back at once.
func (w *Worker) take(life context.Context, d events.Delivery) {
	if w.reserve.Low() != "" {
		w.nak(life, d, busyDelay)
		return
	}
	select {
	case w.slots <- struct{}{}:
	default:
		w.nak(life, d, 0)
		return
	}
	w.running.Go(func() {
		defer func() { <-w.slots }()
		w.handle(life, d)
	})
}

// awaitSlot returns once a slot is free; another pool's pull may still take it first.
func (w *Worker) awaitSlot(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		<-w.slots
		return true
	case <-ctx.Done():
		return false
	}
}

// priority prefers workers with a warm sandbox at hand; lower is served first.
func (w *Worker) priority(pool string) int {
	idle := w.inits.Stats().Idle
	if k := w.pooling.keeper(pool); k != nil {
		idle = k.warm.Stats().Idle
	}
	if idle > 0 {
		return 0
	}
	return 5
}

// handle works on one delivery and settles it.
func (w *Worker) handle(life context.Context, d events.Delivery) {
	cmd, err := d.Command()
	if err != nil {
		w.log.Error().Err(err).Msg("set an unreadable command aside")
		w.term(life, d, err)
		return
	}
	switch cmd.Verb {
	case events.VerbBuild:
		w.handleBuild(life, d, cmd)
		return
	case events.VerbSession:
		w.handleSession(life, d, cmd)
		return
	}
	lease, stop := w.heartbeat(life, d)
	defer stop()
	ctx, cancel := context.WithCancelCause(lease)
	defer cancel(nil)
	j := &job{id: cmd.PlanID, cmd: cmd, cancel: cancel, hint: make(chan struct{}, 1)}
	if other := w.enter(j); other != nil {
		if other.cmd.Verb != cmd.Verb {
			w.nak(life, d, busyDelay) // the plan's last command is being settled
		}
		return // else a redelivery of what this very worker is still doing: its heartbeat holds
	}
	defer w.leave(j)
	err = w.work(ctx, j)
	if j.writer != nil && j.writer.Fold().Final() {
		w.cps.ForgetPlan(j.id)
		w.tidyOriginal(ctx, j)
	}
	fault.At("worker.answer")
	w.answer(life, d, j, err)
}

// answer settles the delivery of a job by how its work ended.
func (w *Worker) answer(life context.Context, d events.Delivery, j *job, err error) {
	log := w.log.With().Str("plan", j.id).Str("verb", j.cmd.Verb).Logger()
	switch {
	case err == nil:
		w.settle(life, "ack", d.Ack)
	case fenced(err):
		log.Warn().Err(err).Msg("lost the plan to another claim: nothing more is changed")
	case errors.Is(err, errNoPlan), errors.Is(err, errMisrouted):
		log.Error().Err(err).Msg("set a command aside")
		w.term(life, d, err)
	case errors.Is(err, executor.ErrInterrupted) && j.cmd.Verb == events.VerbRun && j.writer.Fold().Executed:
		log.Info().Msg("handed the plan over before its apply")
		w.settle(life, "ack", d.Ack) // it goes on with an apply command: this one would be a second claim
	case errors.Is(err, executor.ErrInterrupted):
		log.Info().Msg("handed the plan over at its last checkpoint")
		w.nak(life, d, 0)
	default:
		log.Error().Err(err).Msg("could not go on; the command comes again")
		w.nak(life, d, heartbeatEvery)
	}
}

func (w *Worker) nak(life context.Context, d events.Delivery, delay time.Duration) {
	w.settle(life, "nak", func(ctx context.Context) error { return d.Nak(ctx, delay) })
}

func (w *Worker) term(life context.Context, d events.Delivery, why error) {
	w.settle(life, "term", func(ctx context.Context) error { return d.Term(ctx, why.Error()) })
}

// settle ends a delivery. One that could not be settled comes again, and is found done.
func (w *Worker) settle(life context.Context, what string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(life, settleLimit)
	defer cancel()
	if err := do(ctx); err != nil {
		w.log.Warn().Err(err).Str("answer", what).Msg("settle a command")
	}
}

// enter registers a job, or returns the one that this worker has for the plan already.
func (w *Worker) enter(j *job) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if other := w.plans[j.id]; other != nil {
		return other
	}
	w.plans[j.id] = j
	return nil
}

func (w *Worker) leave(j *job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.plans, j.id)
}

// cancelHinted looks at the log of a plan under way here at once: the log decides, not the hint.
func (w *Worker) cancelHinted(id string) {
	w.mu.Lock()
	j := w.plans[id]
	w.mu.Unlock()
	if j == nil {
		return
	}
	select {
	case j.hint <- struct{}{}:
	default:
	}
}

// work brings a plan as far as it can go from where its log says it is.
func (w *Worker) work(ctx context.Context, j *job) error {
	var err error
	if j.writer, err = events.OpenWriter(ctx, w.fleet.Log, j.id, "/worker/"+w.cfg.Name); err != nil {
		return err
	}
	fold := j.writer.Fold()
	switch {
	case fold.State == "":
		return fmt.Errorf("%w: %s has no events", errNoPlan, j.id)
	case fold.Undoing && j.cmd.Verb == events.VerbUndo:
	case fold.Final(), fold.State == events.StateAwaitingApproval:
		return nil // a late duplicate: its work is done
	case fold.Executed && !fold.Held && j.cmd.Verb == events.VerbRun:
		return nil // what is left is the apply command's
	}
	if j.plan, err = w.body(ctx, j.id); err != nil {
		return err
	}
	if r := j.plan.Resource; r != nil && r.Path != "" && r.Host != w.cfg.HostID {
		return fmt.Errorf("%w: %s is for host %q, this is %q", errMisrouted, j.id, r.Host, w.cfg.HostID)
	}
	if fold.Final() {
		return w.undoPlan(ctx, j)
	}
	if fold.Exhausted() {
		return w.die(ctx, j)
	}
	stop := w.watchCancel(ctx, j)
	defer stop()
	if fold.Executed {
		return w.applyClaim(ctx, j)
	}
	return w.runClaim(ctx, j)
}

// die ends a plan whose workers were lost too often; what the last one left changed in
// place is rolled back first.
func (w *Worker) die(ctx context.Context, j *job) error {
	rolledBack, err := w.undoInPlace(ctx, j.plan)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	msg := fmt.Sprintf("%d workers were lost while they ran it: see its output and the workers' logs, then submit it again", j.writer.Fold().Losses+1)
	if err != nil {
		msg += ": " + err.Error()
	}
	return settled(j.writer.Append(ctx, events.TypeDead, events.Data{Code: "attempts_exhausted", Error: msg, RolledBack: rolledBack}))
}

// settled turns "somebody else ended it" into success: the command's work is done.
func settled(err error) error {
	if errors.Is(err, events.ErrFinal) {
		return nil
	}
	return err
}

// body reads the plan from its accepted event, the only place it is kept.
func (w *Worker) body(ctx context.Context, id string) (*plan.Plan, error) {
	accepted, err := events.Accepted(ctx, w.fleet.Log, id)
	if err != nil {
		return nil, err
	}
	p, err := plan.ParseJSON(accepted.Event.Data.Body)
	if err != nil {
		return nil, fmt.Errorf("worker: read plan %q: %w", id, err)
	}
	w.ofItsPool(p, accepted.Event.Data.Plan)
	p.Defaults()
	return p, nil
}

// watchCancel looks at the log when a hint came, and now and then, since a hint may be lost.
func (w *Worker) watchCancel(ctx context.Context, j *job) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(cancelPoll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-j.hint:
			case <-tick.C:
			}
			if fold, err := j.writer.Refresh(ctx); err == nil && fold.CancelRequested {
				j.cancel(executor.ErrCancelled)
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
