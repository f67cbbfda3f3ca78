package model

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/internal/layer/modeltest"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// An original changes between plans in any way: the next base image, and a sandbox of it, are as the original is then.
func TestModel_BaseRefresh(t *testing.T) {
	d := modeltest.Driver{Name: "Refresh", Profile: modeltest.Profile{Setuid: true}, Owner: isolate.HostID, Plain: plain}
	two := workersOn(t, kinds()[0], sandboxtest.New(t))
	d.Start = func(from string) (*modeltest.Subject, error) {
		r := refreshed{workers: two, path: filepath.Join(filepath.Dir(from), "original"), images: map[int]base.Base{}}
		return r.start(from)
	}
	modeltest.Model(t, d, 50, 1, 2)
}

// refreshed is an original that changes by itself; its checkpoints are base images.
type refreshed struct {
	workers
	path   string
	store  *base.Store
	images map[int]base.Base
}

func (r *refreshed) start(from string) (*modeltest.Subject, error) {
	err := modeltest.CopyTree(r.path, from)
	if err == nil {
		r.store, err = base.Open(base.Options{Dir: filepath.Join(filepath.Dir(from), "bases"), Cache: r.bed().Host.Cache, Log: zerolog.Nop()})
	}
	if err != nil {
		return nil, err
	}
	return &modeltest.Subject{
		Run: func(job modeltest.Job) (modeltest.Report, error) {
			job.Dir = r.path
			return plain(job)
		},
		Checkpoint: r.image, Close: r.close,
		Views: map[string]modeltest.View{
			"tree":    func(n int) (layertest.Snapshot, layertest.Options, error) { return treeOf(r.images[n].Chain) },
			"sandbox": r.sandbox,
		},
		Always: []string{"tree", "sandbox"},
	}, nil
}

func (r *refreshed) image(n int) (bool, error) {
	b, err := r.store.FromPath(context.Background(), r.path)
	r.images[n] = b
	return b.Changed, err
}

func (r *refreshed) close() error {
	for _, b := range r.images {
		b.Release()
	}
	return nil
}

// sandbox is what a command sees in a sandbox of an image.
func (r *refreshed) sandbox(n int) (layertest.Snapshot, layertest.Options, error) {
	o := layertest.Options{NoOwners: true, NoLinks: r.kind.lax}
	w := r.workers
	err := w.enter(sandbox.Spec{ID: "01J00000000000000000000000", Strategy: sandbox.CopyOnWrite, Chain: r.images[n].Chain, Network: isolate.NetworkNone}, 1)
	if err != nil {
		return nil, o, err
	}
	report, err := w.run(modeltest.Job{})
	if closeErr := w.leave(); err == nil {
		err = closeErr
	}
	return report.Tree, o, err
}
