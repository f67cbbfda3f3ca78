package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/internal/layer/modeltest"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// workers are two workers that share a store and records, and a sandbox that lives on one of them.
type workers struct {
	kind  kind
	beds  [2]*sandboxtest.Bed
	mail  string // a directory of the host that sandboxes see, for jobs
	jobs  int
	here  int // which bed the sandbox is on
	live  *sandbox.Sandbox
	chain layer.Chain // at the last checkpoint
	ids   map[int]string
	dir   string
}

// kind is a way to show a sandbox' tree.
type kind struct {
	name     string
	strategy sandbox.Strategy
	driver   layer.Driver
	lax      bool
}

// workersOn are workers whose sandboxes see what an agent needs.
func workersOn(t *testing.T, k kind, first *sandboxtest.Bed) workers {
	t.Helper()
	w := workers{kind: k, beds: [2]*sandboxtest.Bed{first, sandboxtest.Beside(t, first)}, mail: t.TempDir()}
	if err := os.Chmod(w.mail, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range w.beds {
		if k.driver != "" && b.Host.Layers.Driver != k.driver {
			b.Host.Layers = layer.Choice{Driver: k.driver, Why: "asked for"}
		}
		report := b.Host.Report
		b.Host.Init = func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
			return isolate.Start(ctx, isolate.Config{
				Rung: report.Rung, Network: network, NoSetuid: noSetuid && os.Getuid() == 0, Expose: []string{filepath.Dir(exe), w.mail},
			})
		}
	}
	return w
}

// on is the kind on two workers.
func (k kind) on(t *testing.T, first *sandboxtest.Bed) modeltest.Driver {
	t.Helper()
	w := workersOn(t, k, first)
	return modeltest.Driver{
		Name: k.name, Profile: modeltest.Profile{Setuid: k.strategy != sandbox.None}, Owner: isolate.HostID,
		Plain: plain,
		Start: func(from string) (*modeltest.Subject, error) {
			one := w
			one.ids, one.dir = map[int]string{}, filepath.Dir(from)
			return one.start(from)
		},
	}
}

// plain does a job as an ordinary user, which a sandbox' commands are.
func plain(job modeltest.Job) (modeltest.Report, error) {
	if os.Getuid() != 0 {
		return modeltest.Do(job), nil
	}
	return modeltest.Process(job, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: isolate.HostID, Gid: isolate.HostID}})
}

func (w *workers) start(from string) (*modeltest.Subject, error) {
	ctx := context.Background()
	spec := sandbox.Spec{ID: events.NewID(), Strategy: w.kind.strategy, Network: isolate.NetworkNone}
	dir := from
	if w.kind.strategy == sandbox.None {
		spec.Path = filepath.Join(w.dir, "original")
		dir = spec.Path
		if err := modeltest.CopyTree(dir, from); err != nil {
			return nil, err
		}
	}
	base, index, _, err := w.bed().Host.Cache.Capture(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	spec.Chain, spec.Index = layer.Chain{base}, index
	if err := w.enter(spec, 1); err != nil {
		return nil, err
	}
	return &modeltest.Subject{
		Run: w.run, Checkpoint: w.checkpoint, Rollback: w.rollback, Move: w.move, Close: w.leave, Lax: w.kind.lax,
		Views:  map[string]modeltest.View{"tree": w.tree, "export": w.export},
		Always: []string{"tree"},
		Ignore: layertest.Options{NoOwners: true, NoLinks: w.kind.lax},
	}, nil
}

func (w *workers) bed() *sandboxtest.Bed { return w.beds[w.here] }

// enter makes the sandbox.
func (w *workers) enter(spec sandbox.Spec, base int) error {
	s, err := sandbox.New(context.Background(), w.bed().Host, spec)
	if err != nil {
		return err
	}
	w.bed().Manager.Adopt(s, base)
	w.live, w.chain = s, s.Chain()
	return nil
}

func (w *workers) leave() error {
	err := w.live.Close()
	w.bed().Manager.Forget(w.live.ID())
	return err
}

// run does a job by a command in the sandbox.
func (w *workers) run(job modeltest.Job) (modeltest.Report, error) {
	w.jobs++
	job.Dir = "."
	file := filepath.Join(w.mail, fmt.Sprint(w.live.ID(), "-", w.jobs))
	if err := job.Write(file); err != nil {
		return modeltest.Report{}, err
	}
	exe, err := os.Executable()
	if err != nil {
		return modeltest.Report{}, err
	}
	var out, complaint bytes.Buffer
	res, err := w.live.Exec(context.Background(), isolate.Command{
		Argv: []string{exe}, Env: append(w.live.BaseEnv(), modeltest.JobVariable+"="+file, "GORACE=atexit_sleep_ms=0"), Stdout: &out, Stderr: &complaint,
	})
	if err != nil || res.ExitCode == nil || *res.ExitCode != 0 {
		return modeltest.Report{}, fmt.Errorf("run an agent in the sandbox: %+v, %w\n%s", res, err, complaint.String())
	}
	return modeltest.ReadReport(&out)
}

func (w *workers) checkpoint(n int) (bool, error) {
	cp, err := w.bed().Manager.Create(context.Background(), w.live, "", checkpoint.Step, nil)
	if err != nil {
		return false, err
	}
	w.ids[n] = cp.ID
	if _, err := w.bed().Manager.Store(context.Background(), cp.ID); err != nil {
		return false, err
	}
	before := len(w.chain)
	w.chain = w.live.Chain()
	return len(w.chain) > before, nil
}

func (w *workers) rollback(n int) error {
	err := w.bed().Manager.RollbackTo(context.Background(), checkpoint.Checkpoint{ID: w.ids[n], SandboxID: w.live.ID()})
	w.chain = w.live.Chain()
	return err
}

// move goes on from a checkpoint in a new sandbox: every third time on the same worker, which is a fork.
func (w *workers) move(n int) error {
	old := *w
	if n%3 != 0 {
		w.here = 1 - w.here
	}
	r, err := w.bed().Manager.Restore(context.Background(), w.ids[n])
	if err != nil {
		return err
	}
	defer r.Release()
	spec := sandbox.Spec{ID: events.NewID(), Strategy: w.kind.strategy, Network: isolate.NetworkNone, Chain: r.Chain}
	if w.kind.strategy == sandbox.None {
		if err := w.original(&spec); err != nil {
			return err
		}
	}
	return errors.Join(w.enter(spec, r.BaseLayers), old.leave())
}

// original restores a chain to a directory of its own, to work in place there.
func (w *workers) original(spec *sandbox.Spec) error {
	spec.Path = filepath.Join(w.dir, spec.ID)
	err := os.Mkdir(spec.Path, 0o755)
	if err == nil && os.Getuid() == 0 {
		err = os.Chown(spec.Path, isolate.HostID, isolate.HostID)
	}
	if err == nil {
		spec.Index, err = w.bed().Host.Cache.Restore(context.Background(), spec.Path, nil, spec.Chain)
	}
	return err
}
