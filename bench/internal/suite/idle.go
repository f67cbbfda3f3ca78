package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
)

// idleTarget is how many warm sandboxes a worker is to hold, pssTarget what each may take, in MiB.
const (
	idleTarget = 200
	pssTarget  = 3
)

// refill measures how fast a pool fills, and what its sandboxes take while they wait.
func refill(ctx context.Context, p *poolRig) error {
	w, err := p.employ(ctx, "bench", 0)
	if err != nil {
		return err
	}
	if err := p.apply(ctx, 1, often); err != nil {
		return err
	}
	if err := filled(ctx, w, 1); err != nil { // the image is open, the mirror is there
		return err
	}
	before, err := takeHoldings(os.Getpid())
	if err != nil {
		return err
	}
	cpu, began := cpuTime(), time.Now()
	n := pick(p.e, idleTarget, 10)
	if err := p.apply(ctx, n, often); err != nil {
		return err
	}
	if err := filled(ctx, w, n); err != nil {
		return err
	}
	took, cpu := time.Since(began), cpuTime()-cpu
	inits := children(os.Getpid(), "warmfleet-init", "init")
	if len(inits) < n {
		return fmt.Errorf("%d inits of %d warm sandboxes were found", len(inits), n)
	}
	made := float64(n - 1)
	var perSandbox bench.Samples
	perSandbox.Take(time.Duration(float64(cpu) / made))
	what := fmt.Sprintf("refill of a pool by %d sandboxes", n-1)
	return errors.Join(
		p.e.Add(bench.Result{What: what + ", rate", Ours: bench.Samples{made / took.Seconds()}, Unit: "per s"}),
		p.e.Add(bench.Result{What: "... CPU a sandbox, in the worker's process, scheduler and server included", Ours: perSandbox}),
		p.idle(inits, before, n),
	)
}

// idle adds what inits take that wait, and the worker for them.
func (p *poolRig) idle(inits []int, before holdings, n int) error {
	var cpu, pss, files, mounts bench.Samples
	for _, pid := range inits {
		h, err := takeHoldings(pid)
		if err != nil {
			return err
		}
		cpu.Take(h.cpu)
		pss, files, mounts = append(pss, h.pss), append(files, h.files), append(mounts, h.mounts)
	}
	after, err := takeHoldings(os.Getpid())
	if err != nil {
		return err
	}
	each := func(now, was float64) bench.Samples { return bench.Samples{(now - was) / float64(n-1)} }
	const ofInit = "... descriptors of its init"
	count := func() error { return p.e.Add(bench.Result{What: ofInit, Ours: files, Unit: "files"}) }
	if files[0] == unseen {
		count = func() error { return p.e.Skip(ofInit, "only root may look") }
	}
	what := fmt.Sprintf("%d idle warm sandboxes, each: ", n)
	return errors.Join(
		p.e.Add(bench.Result{What: "... CPU of its init", Ours: cpu}),
		p.e.Add(bench.Result{What: what + "Pss of its init", Ours: pss, Unit: "MiB", Target: bench.Target{P50: pssTarget}}),
		count(),
		p.e.Add(bench.Result{What: "... mounts of its init", Ours: mounts, Unit: "mounts"}),
		p.e.Add(bench.Result{What: "... descriptors of the worker", Ours: each(after.files, before.files), Unit: "files"}),
		p.e.Add(bench.Result{What: "... mounts of the worker", Ours: each(after.mounts, before.mounts), Unit: "mounts"}),
	)
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic("getrusage: " + err.Error()) // only arguments that do not exist do that
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
