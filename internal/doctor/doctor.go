// Package doctor finds out, by trying, what a machine can guarantee to plans, and why not
// more. It needs no server.
//
// It knows isolation, layers and limits; it must not know plans, workers or how its report
// is shown.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
)

// Report is what was found. Its JSON is part of the contract of the command line: fields
// may be added, none changes its meaning.
type Report struct {
	Isolation string `json:"isolation"`
	// IsolationWhy says why it is not a better rung, "" for the best.
	IsolationWhy string `json:"isolation_why,omitempty"`
	IsolationFix string `json:"isolation_fix,omitempty"` // what to do for a better one
	Overlay      bool   `json:"overlay"`
	OverlayWhy   string `json:"overlay_why,omitempty"`
	// Layers is how a worker here would make the trees of sandboxes, Drivers what each way lacks, "" where it works.
	Layers  layer.Choice      `json:"layers"`
	Drivers map[string]string `json:"drivers"`
	// Guarantees have, where they are not enforced, why and what to do.
	Guarantees map[string]isolate.Guarantee `json:"guarantees"`
	// Missing are the guarantees that `required` asks for and that are not enforced.
	Missing   []string  `json:"missing"`
	System    System    `json:"system"`
	Programs  []Program `json:"programs"`
	State     StateDir  `json:"state_dir"`
	TookMilli int64     `json:"took_ms"`
}

// Options say what is examined.
type Options struct {
	// StateDir is where a worker would keep its state. It is made if missing, and left as it was found.
	StateDir string
	// Cgroups are the control groups to use; see limit.Open.
	Cgroups limit.Version
	Log     zerolog.Logger
}

// Examine tries out everything, in well under a second. An error means that it could not be tried.
func Examine(ctx context.Context, o Options) (Report, error) {
	began := time.Now()
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return Report{}, fmt.Errorf("doctor: make state directory: %w: use --state-dir to name another", err)
	}
	tmp, err := os.MkdirTemp(o.StateDir, "doctor-")
	if err != nil {
		return Report{}, fmt.Errorf("doctor: write to %s: %w: use --state-dir to name another", o.StateDir, err)
	}
	defer layer.RemoveTree(tmp)
	e := &examination{options: o, dir: tmp, groups: limit.Open(o.Cgroups)}
	defer e.groups.Close()
	var versions sync.WaitGroup
	versions.Go(e.askVersions) // the slowest, and needs nothing of the others
	err = e.run(ctx)
	versions.Wait()
	if err != nil {
		return Report{}, err
	}
	e.joinPrograms()
	e.report.TookMilli = time.Since(began).Milliseconds()
	return e.report, nil
}

// examination is one under way.
type examination struct {
	options Options
	groups  *limit.Groups
	dir     string // private, on the state directory's file system
	report  Report
	noDisk  error // why no disk could be made for a sandbox
	held    isolate.Report
	visible map[string]string  // program -> where a sandbox has it
	here    map[string]Program // as this process finds them
}

func (e *examination) run(ctx context.Context) error {
	var err error
	if e.held, err = isolate.Probe(ctx, e.dir); err != nil {
		return err
	}
	var alone sync.WaitGroup
	var findErr error
	strong := ""
	alone.Go(func() { _, e.noDisk = disk.Open(ctx, e.dir) })
	alone.Go(func() { strong = said(e.tryStrong(ctx)) })
	alone.Go(func() { e.visible, findErr = isolate.FindPrograms(ctx, e.held.Rung, e.subdir("find"), programs()) })
	err = e.tryLimits(ctx)
	alone.Wait()
	if err = errors.Join(err, findErr); err != nil {
		return err
	}
	if err := e.tryDisk(); err != nil {
		return err
	}
	e.report.Isolation, e.report.IsolationWhy, e.report.IsolationFix = string(e.held.Rung), e.held.RungWhy, e.held.RungFix
	e.report.Overlay, e.report.OverlayWhy = e.held.Overlay, e.held.OverlayWhy
	if err := e.tryLayers(); err != nil {
		return err
	}
	e.holdDisk()
	e.report.Guarantees = e.held.Guarantees
	if e.report.Missing = e.held.Unmet(isolate.NetworkNone); e.report.Missing == nil {
		e.report.Missing = []string{}
	}
	e.report.System = e.system(ctx)
	e.report.System.Strong = strong
	e.report.State, err = e.stateDir()
	return err
}

// subdir makes a directory that belongs to sandboxes, as far as possible.
func (e *examination) subdir(name string) string {
	dir := filepath.Join(e.dir, name)
	if owner := e.held.Rung.Owner(); os.Mkdir(dir, 0o755) == nil && owner != os.Getuid() {
		os.Chown(dir, owner, owner)
	}
	return dir
}

// tryLimits runs commands into the limits that control groups or the kernel promise. What
// does not hold then is absent, whatever could be set.
func (e *examination) tryLimits(ctx context.Context) error {
	e.groups.Describe(&e.held)
	trial := isolate.LimitTrial{Rung: e.held.Rung, Dir: e.subdir("limits"), Names: e.groups.Bounded()}
	var err error
	if len(trial.Names) > 0 {
		trial.Group, err = e.groups.New()
	}
	if err == nil && len(trial.Names) > 0 {
		err = e.try(ctx, trial)
	}
	if err == nil && e.held.ProcessLimit {
		err = e.try(ctx, isolate.LimitTrial{Rung: e.held.Rung, Dir: trial.Dir, Names: []string{isolate.Pids}})
	}
	return err
}

func (e *examination) try(ctx context.Context, trial isolate.LimitTrial) error {
	broken, err := isolate.TryLimits(ctx, trial)
	if err != nil {
		return err
	}
	e.breakPromises(broken)
	return nil
}

// breakPromises takes back what was promised and did not hold.
func (e *examination) breakPromises(broken map[string]string) {
	for name, how := range broken {
		e.held.Guarantees[name] = isolate.Guarantee{
			State: isolate.Absent, Why: "tried, and it did not hold: " + how,
			Fix: "have the worker started in a group of its own whose limits nothing else changes, or limit it as a whole by its container",
		}
	}
}

// holdDisk says whether sandboxes can have disks of their own, unless not even measuring works instead.
func (e *examination) holdDisk() {
	err := e.noDisk
	if err == nil && e.report.Layers.Driver != layer.Overlay {
		err = fmt.Errorf("trees are made by %s", e.report.Layers.Driver)
	}
	if e.held.Guarantees[isolate.Disk].State != isolate.Absent || err == nil {
		limit.DescribeDisk(&e.held, err)
	}
}

// tryDisk measures what was written, as is done while steps run.
func (e *examination) tryDisk() error {
	const written = 1 << 20
	dir := e.subdir("disk")
	if err := os.WriteFile(filepath.Join(dir, "written"), make([]byte, written), 0o600); err != nil {
		return fmt.Errorf("doctor: write to the state directory: %w", err)
	}
	size, err := layer.Layer{Dir: dir}.DiskSize(layer.Allocated)
	if err != nil {
		return fmt.Errorf("doctor: measure what was written: %w", err)
	}
	if size < written {
		e.held.Guarantees[isolate.Disk] = isolate.Guarantee{
			State: isolate.Absent,
			Why:   fmt.Sprintf("the file system does not tell what is used: %d bytes were written, %d counted", written, size),
			Fix:   "put the state directory on another file system with --state-dir, one that does not compress",
		}
	}
	return nil
}

// tryLayers chooses the driver as a worker of this state directory would, and tries the others.
func (e *examination) tryLayers() error {
	owner := e.held.Rung.Owner()
	o := layer.Options{Owner: owner, Trusted: owner == isolate.HostID, Log: e.options.Log}
	cache, err := layer.OpenCache(filepath.Join(e.dir, "layers"), o)
	if err != nil {
		return err
	}
	e.report.Layers, err = cache.Choose("", e.held.OverlayWhy)
	e.report.Drivers = map[string]string{}
	for _, d := range []layer.Driver{layer.Overlay, layer.Reflink, layer.Copy} {
		why := ""
		if _, err := cache.Choose(d, e.held.OverlayWhy); err != nil {
			why = strings.TrimPrefix(err.Error(), fmt.Sprintf("%s: %s: ", layer.ErrDriver, d))
			why = strings.ReplaceAll(why, e.dir, e.options.StateDir)
		}
		e.report.Drivers[string(d)] = why
	}
	return errors.Join(err, cache.Close())
}
