package isolate

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate/inside"
	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// MaxDetached is how many detached processes, with what they started, run in one sandbox at a time.
const MaxDetached = inside.MaxDetached

// Detached is a process that was started to go on by itself.
type Detached struct {
	PID int    // of what supervises it, inside the sandbox
	Log string // the file that takes its output, as commands see it
}

// Start runs a command that goes on after the call: no end of another command ends it, or
// what it starts, but Detach does, and with it every checkpoint and rollback, and Close. It
// waits its turn as Exec does, and returns when the program runs. What it prints goes to a
// new file in HOME, which the sandbox's scratch space bounds and no layer has. Of the
// command only Argv, Env, Dir and Secrets may be set; secrets stay for as long as it
// runs. While others are killed around it, it is stopped for some milliseconds. On RungLandlock
// and RungBare that is best effort, like every end of a tree there. At most MaxDetached.
func (i *Init) Start(ctx context.Context, c Command) (Detached, error) {
	err := c.check()
	if err == nil && (c.Stdin != nil || c.Stdout != nil || c.Stderr != nil || c.Timeout != 0 || c.Started != nil) {
		err = errors.New("a detached command has no input, output, timeout or call at its start")
	}
	if err != nil {
		return Detached{}, fmt.Errorf("isolate: start detached: %w", err)
	}
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return Detached{}, ctx.Err()
	case <-i.done:
		return Detached{}, i.lost()
	}
	m := i.request(c)
	i.mu.Lock()
	log := fmt.Sprintf("/detached-%d.log", i.lastID+1)
	i.mu.Unlock()
	m.Log = i.hostHome() + log
	frame, err := i.call(ctx, wire.KindExec, m)
	if err != nil {
		return Detached{}, fmt.Errorf("isolate: start detached: %w", err)
	}
	var exited wire.Exited
	if err := frame.Decode(&exited); err != nil {
		return Detached{}, fmt.Errorf("isolate: start detached: %w", err)
	}
	if exited.Start != "" {
		return Detached{}, fmt.Errorf("isolate: start detached: %s", exited.Start)
	}
	return Detached{PID: int(exited.PID), Log: i.home() + log}, nil
}

// Detached is how many processes that Start started run, or have left some that do.
func (i *Init) Detached(ctx context.Context) (int, error) {
	frame, err := i.call(ctx, wire.KindDetached, nil)
	if err != nil {
		return 0, fmt.Errorf("isolate: count detached processes: %w", err)
	}
	var m wire.Detached
	if err := frame.Decode(&m); err != nil {
		return 0, fmt.Errorf("isolate: count detached processes: %w", err)
	}
	return int(m.Count), nil
}
