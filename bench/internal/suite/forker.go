package suite

import (
	"context"
	"encoding/json"
	"os/exec"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// forker is a worker without sandboxes: it claims plans, forks, and appends and records what a worker does.
type forker struct {
	s     *server
	slots int
}

const (
	forkerName = "forker"
	forkerPool = "default"
)

func (f *forker) run(ctx context.Context, ready func()) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { f.present(ctx) })
	for {
		if ok, err := f.s.Queue.HasPool(ctx, forkerPool); err != nil {
			return err
		} else if ok {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	ready()
	for range f.slots {
		tasks.Go(func() { f.pull(ctx) })
	}
	<-ctx.Done()
	return nil
}

// present keeps the forker's record alive.
func (f *forker) present(ctx context.Context) {
	record, err := json.Marshal(events.Worker{Name: forkerName, Host: hostID, State: "ready", Slots: f.slots, Pools: map[string]string{forkerPool: ""}})
	if err != nil {
		panic(err) // a struct of plain values
	}
	for ctx.Err() == nil {
		_, _ = f.s.Workers.Put(ctx, forkerName, record) // the next one comes in a second
		select {
		case <-ctx.Done():
		case <-time.After(events.WorkerInterval):
		}
	}
}

func (f *forker) pull(ctx context.Context) {
	for ctx.Err() == nil {
		got, err := f.s.Queue.Pull(ctx, events.Pull{Pool: forkerPool, Max: 1, Wait: time.Second})
		if err != nil {
			return
		}
		for _, d := range got {
			if f.handle(ctx, d) == nil {
				_ = d.Ack(ctx) // else it comes again
			}
		}
	}
}

// handle does to the log what a worker does for a plan of one step.
func (f *forker) handle(ctx context.Context, d events.Delivery) error {
	cmd, err := d.Command()
	if err != nil {
		return err
	}
	w, err := events.OpenWriter(ctx, f.s.Log, cmd.PlanID, "/worker/"+forkerName)
	if err != nil {
		return err
	}
	accepted, err := events.Accepted(ctx, f.s.Log, cmd.PlanID)
	if err != nil {
		return err
	}
	p, err := plan.ParseJSON(accepted.Event.Data.Body)
	if err != nil {
		return err
	}
	err = w.Claim(ctx, events.Data{Worker: forkerName, Checkpoint: &events.CheckpointRef{ID: events.NewID(), Phase: events.PhasePreExecute}})
	if err != nil {
		return err
	}
	return f.steps(ctx, w, cmd.PlanID, p)
}

func (f *forker) steps(ctx context.Context, w *events.Writer, id string, p *plan.Plan) error {
	zero := 0
	started := events.Data{Step: p.Steps[0].ID, StepIndex: &zero, Try: 1}
	if err := w.Append(ctx, events.TypeStepStarted, started); err != nil {
		return err
	}
	if err := exec.Command(truth).Run(); err != nil {
		return err
	}
	finished := started
	finished.State, finished.ExitCode = "succeeded", &zero
	if err := w.Append(ctx, events.TypeStepFinished, finished); err != nil {
		return err
	}
	cp := checkpoint.Checkpoint{ID: events.NewID(), PlanID: id, Phase: checkpoint.PostExecute, Portable: true}
	record, err := json.Marshal(cp)
	if err != nil {
		return err
	}
	if _, err := f.s.Checkpoints.Create(ctx, cp.ID, record); err != nil {
		return err
	}
	err = w.Append(ctx, events.TypeCheckpointed, events.Data{Checkpoint: &events.CheckpointRef{ID: cp.ID, Phase: string(cp.Phase), Portable: true, Cursor: 1}})
	if err != nil {
		return err
	}
	return w.Append(ctx, events.TypeExecuted, events.Data{Changed: &zero})
}
