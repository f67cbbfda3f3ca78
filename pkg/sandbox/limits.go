package sandbox

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
)

const (
	// lookEvery is how often a running command is held against its limits.
	lookEvery = 50 * time.Millisecond
	// countEvery is how often processes are walked where no control group counts them.
	countEvery = 200 * time.Millisecond
	// lookAtDisk is how often a disk of its own is looked at: a command that cleans up when it is full is seen all the same.
	lookAtDisk = 5 * time.Millisecond
	// measureShare bounds what measuring the disk costs: one part in so many of the time.
	measureShare = 20
)

// guard holds one command against the sandbox's limits.
type guard struct {
	group   isolate.Group
	disk    int64
	own     *disk.Disk // tells what is written to dir; nil without a disk of its own
	dir     string     // what is measured
	also    []string   // what is measured too
	base    int64      // of it, what was there at the start
	began   isolate.Exhausted
	init    *isolate.Init
	memory  int64     // held by counting; 0 where the kernel does, or no limit
	pids    int       // likewise
	bounded int       // how many processes the kernel lets there be without a group; 0 where a group bounds them, or no limit
	many    bool      // so many were seen
	counted time.Time // when processes were walked last
	next    time.Time // when the disk is measured whatever the file system says
	used    int64     // at the last measurement
	usedAll int64     // of the file system, at the last measurement
}

// coresEnv tells programs how many cores they may use, where that is fewer than they would
// count: a quota of time is not visible in a sandbox. make is not told, its default being
// one; `make -j$(nproc)` is, for nproc heeds OMP_NUM_THREADS.
func coresEnv(cpus float64) []string {
	if cpus <= 0 || cpus >= float64(runtime.NumCPU()) {
		return nil
	}
	n := strconv.Itoa(max(int(math.Ceil(cpus)), 1))
	return []string{"GOMAXPROCS=" + n, "OMP_NUM_THREADS=" + n, "CARGO_BUILD_JOBS=" + n, "CMAKE_BUILD_PARALLEL_LEVEL=" + n}
}

// bound sets the limits of the sandbox's init.
func (s *Sandbox) bound() error {
	if g := s.init.Group(); g != nil {
		return g.Set(s.spec.Limits)
	}
	return nil
}

// guarded runs a command and ends it when it exceeds a limit.
func (s *Sandbox) guarded(ctx context.Context, in *isolate.Init, c isolate.Command) (isolate.Result, error) {
	g, err := s.guard(in)
	if err != nil {
		return isolate.Result{}, fmt.Errorf("sandbox: limit %q: %w", s.spec.ID, err)
	}
	ctx, exceed := context.WithCancelCause(ctx)
	defer exceed(nil)
	defer s.reserved(in, exceed)()
	if g == nil {
		return in.Exec(ctx, c)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		g.watch(ctx, exceed)
	}()
	c.Processes = g.bounded
	res, err := in.Exec(ctx, c)
	exceed(nil)
	<-over
	if err != nil {
		return res, err
	}
	return g.judge(res)
}

// guard is nil where there is nothing to watch.
func (s *Sandbox) guard(in *isolate.Init) (*guard, error) {
	if s.spec.Limits == (isolate.Limits{}) {
		return nil, nil
	}
	g := &guard{group: in.Group(), disk: s.spec.Limits.Disk, init: in}
	if s.host.Report.Guarantees[isolate.Memory].State == isolate.BestEffort {
		g.memory = s.spec.Limits.Memory
	}
	if s.host.Report.Guarantees[isolate.Pids].State == isolate.BestEffort {
		g.pids = s.spec.Limits.PIDs
	}
	if s.host.Report.ProcessLimit {
		g.bounded = s.spec.Limits.PIDs
	}
	var err error
	if g.group != nil {
		if g.began, err = g.group.Exhausted(); err != nil {
			return nil, err
		}
	}
	if g.disk == 0 {
		return g, nil
	}
	s.mu.Lock()
	m := s.view.Mount()
	g.own = s.disk
	s.mu.Unlock()
	g.dir, g.also = m.Upper, in.Written()
	if g.dir != "" {
		return g, nil
	}
	g.dir = m.Bind // holds the base too
	g.base, err = layer.Layer{Dir: g.dir}.DiskSize(layer.Allocated)
	return g, err
}

// watch looks until the command has ended or exceeds a limit.
func (g *guard) watch(ctx context.Context, exceed context.CancelCauseFunc) {
	every := lookEvery
	if g.own != nil {
		every = lookAtDisk
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if cause := g.exceeded(); cause != "" {
			exceed(&isolate.ExceededError{Cause: cause})
			return
		}
	}
}

// exceeded is a limit that the command must die for. One process killed for memory ends
// the step whole, as the kernel does where it can.
func (g *guard) exceeded() isolate.Cause {
	if g.group != nil {
		if now, err := g.group.Exhausted(); err == nil && now.Memory > g.began.Memory {
			return isolate.CauseOOM
		}
	}
	if g.disk > 0 && g.full() {
		return isolate.CauseDisk
	}
	return g.count()
}

// count holds what no control group does: a burst between two looks is missed.
func (g *guard) count() isolate.Cause {
	if g.memory == 0 && g.pids == 0 && g.bounded == 0 || time.Since(g.counted) < countEvery {
		return ""
	}
	g.counted = time.Now()
	processes, memory := g.init.Usage()
	switch {
	case g.memory > 0 && memory > g.memory:
		return isolate.CauseOOM
	case g.pids > 0 && processes > g.pids:
		return isolate.CausePIDs
	case g.bounded > 0 && processes >= g.bounded:
		g.many = true
	}
	return ""
}

// full tells whether the limit of Disk is reached.
func (g *guard) full() bool {
	if g.own != nil {
		used, full := g.own.Usage()
		return full || used+g.beside() >= g.disk
	}
	all := usedBlocks(g.dir)
	// Measured only when the file system has lost enough room since the last time that the limit may be reached, or
	// when it is time.
	if !time.Now().After(g.next) && g.used+all-g.usedAll < g.disk {
		return false
	}
	used, ok := g.measure(append([]string{g.dir}, g.also...))
	if !ok {
		return false
	}
	g.used, g.usedAll = used-g.base, all
	return g.used >= g.disk
}

// beside is what was written beside the workspace, measured when it is time.
func (g *guard) beside() int64 {
	if len(g.also) == 0 || !time.Now().After(g.next) {
		return g.used
	}
	if used, ok := g.measure(g.also); ok {
		g.used = used
	}
	return g.used
}

// measure is what directories take, false for a tree that changes while it is walked: the next look counts.
func (g *guard) measure(dirs []string) (int64, bool) {
	began := time.Now()
	used, err := sizeOf(dirs)
	if err != nil {
		return 0, false
	}
	g.next = time.Now().Add(max(time.Since(began)*measureShare, time.Second))
	return used, true
}

// usedBlocks is what the file system of dir holds, in bytes.
func usedBlocks(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// judge gives a command that has ended the cause that only its limits know.
func (g *guard) judge(res isolate.Result) (isolate.Result, error) {
	if res.Cause != isolate.CauseExit && res.Cause != isolate.CauseSignal && res.Cause != isolate.CauseStart {
		return res, nil
	}
	failed := res.ExitCode == nil || *res.ExitCode != 0
	if failed && g.own != nil && g.full() {
		res.Cause = isolate.CauseDisk
	}
	if failed && g.bounded > 0 && (g.many || res.Left+1 >= g.bounded) {
		res.Cause = isolate.CausePIDs
	}
	if g.group == nil {
		return res, nil
	}
	now, err := g.group.Exhausted()
	switch {
	case err != nil:
		return res, fmt.Errorf("sandbox: read limits: %w", err)
	case now.Memory > g.began.Memory:
		res.Cause = isolate.CauseOOM
	case failed && now.PIDs > g.began.PIDs:
		res.Cause = isolate.CausePIDs
	}
	return res, nil
}
