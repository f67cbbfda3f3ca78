package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// driftShown is how many paths that others changed an event names.
const driftShown = 20

// kindDrift is the kind of a conflict over a path that others changed below a sandbox on a live base.
const kindDrift applier.Kind = "drift"

// checkLive refuses what a live base cannot be under.
func (w *Worker) checkLive(p *plan.Plan, t *target) error {
	const instead = "use base: image, which is a copy"
	switch {
	case p.Base != plan.BaseLive:
		return nil
	case p.Strategy != plan.CopyOnWrite:
		return refuse("invalid_strategy", "base live: strategy %s has no layer below it: use copy_on_write, or leave base out", p.Strategy)
	case t.info.Kind == gitrepo.KindBare && p.Apply != plan.ApplyNever:
		return nil // refused for that
	case !w.report.Overlay:
		return refuse("unsupported", "base live: %s: needs overlay, which does not work here (%s): %s", t.path, w.report.OverlayWhy, instead)
	case w.layers.Driver != layer.Overlay:
		return refuse("unsupported", "base live: %s: needs overlay, and this worker uses --layers %s: %s", t.path, w.layers.Driver, instead)
	case mountBelow(t.path) != "":
		return refuse("unsupported", "base live: %s: %s is another mount, which an overlay does not show: %s", t.path, mountBelow(t.path), instead)
	case w.report.Rung.MountsAsUser() && !ownedBy(t.path, os.Geteuid()):
		return refuse("unsupported", "base live: %s: belongs to another user, whose files an ordinary user's worker cannot show as the sandbox's own: %s", t.path, instead)
	}
	return nil
}

func ownedBy(path string, uid int) bool {
	fi, err := os.Lstat(path)
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}

// live begins to use the original itself as the base. The watch of it ends with ctx, or when the target is released.
func (w *Worker) live(ctx context.Context, t *target) error {
	l, err := layer.Live(t.path)
	if errors.Is(err, layer.ErrNoLive) {
		return refuse("unsupported", "base live: %v: use base: image, which is a copy", err)
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	if t.watch, err = layer.WatchDir(ctx, t.path); err != nil {
		stop()
		return err
	}
	t.chain = layer.Chain{l}
	t.done = func() {
		stop()
		_ = t.watch.Wait() // it was stopped; whoever needed its answer has it
	}
	return nil
}

// unlivable turns a failure to show the original into what people can do about it.
func unlivable(t *target, err error) error {
	if t.watch == nil || !errors.Is(err, isolate.ErrLive) {
		return err
	}
	return refuse("unsupported", "base live: %s: %v (an id-mapped lower directory needs Linux 6.15 as root): use base: image, which is a copy", t.path, err)
}

// drift is what others changed in a live base while a plan ran.
type drift struct {
	conflicts []applier.Conflict // paths that the plan changed too
	paths     []string           // some of all
	total     int
}

// drifted looks at the original of a live base once the difference was read from it.
func (t *target) drifted(ctx context.Context, changes []layer.Change) (drift, error) {
	var d drift
	if t.watch == nil {
		return d, nil
	}
	touched := make([]layer.Path, len(changes))
	for i, c := range changes {
		touched[i] = c.Path
	}
	both, err := t.watch.Drifted(touched)
	if err != nil {
		return d, err
	}
	all, total, err := t.watch.Changed(ctx, driftShown)
	if err != nil {
		return d, err
	}
	for _, p := range both {
		d.conflicts = append(d.conflicts, applier.Conflict{Path: p, Kind: kindDrift})
		if !slices.Contains(all, p) { // it is gone, or was not reached among so many
			all, total = append([]layer.Path{p}, all...), total+1
		}
	}
	for _, p := range all[:min(len(all), driftShown)] {
		d.paths = append(d.paths, portable(p))
	}
	d.total = total
	return d, nil
}

// conflict ends a plan that changed what others changed below it.
func (d drift) conflict() events.Data {
	msg := fmt.Sprintf("%q was changed by others while the plan ran on it live", d.conflicts[0].Path)
	if n := len(d.conflicts); n > 1 {
		msg = fmt.Sprintf("%d paths were changed by others while the plan ran on them live; the first is %q", n, d.conflicts[0].Path)
	}
	return events.Data{
		Code: "drift", Drift: d.paths, DriftTotal: d.total,
		Error: msg + ": the original is as they made it; submit the plan again, or use base: image",
	}
}
