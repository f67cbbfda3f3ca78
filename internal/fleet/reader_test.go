package fleet_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// read reads a file of a checkpoint by a reader.
func read(t *testing.T, r *fleet.Reader, id string) (string, error) {
	t.Helper()
	got, err := r.Restore(t.Context(), id)
	if err != nil {
		return "", err
	}
	defer got.Release()
	f, err := layer.NewTree(got.Chain).Open("a")
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(f)
	return b.String(), err
}

// A checkpoint can be read with no worker left, with what a worker's cache has and without, and nothing stays behind.
func TestReader_WithoutAWorker(t *testing.T) {
	dir, tree := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	if err := errors.Join(os.MkdirAll(tree, 0o755), os.WriteFile(filepath.Join(tree, "a"), []byte("one\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	l, c := serve(t, dir, worker.Config{HostID: "h1", Slots: 1, AllowPaths: []string{tree}, DrainTimeout: time.Second})
	defer func() { shut(t, l) }()
	id := events.NewID()
	submit(t, c, id, tree, "steps: [{run: echo two >a}]\napply: never\n")
	last, err := c.Wait(t.Context(), id, nil)
	if err != nil || last.Event.Data.Plan.State != events.StateExecuted {
		t.Fatalf("plan %+v, %v", last.Event.Data.Plan, err)
	}
	l.StopWorkers()
	cps, err := checkpoint.All(t.Context(), l.Checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	post := cps[len(cps)-1]

	layers := filepath.Join(dir, "worker-1", "layers")
	before, err := os.ReadDir(layers)
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	for name, opened := range map[string]func() (*fleet.Reader, error){
		"OfTheWorker": func() (*fleet.Reader, error) { return l.Reader(t.Context()) },
		"Temporary":   func() (*fleet.Reader, error) { return l.Fleet.Reader(zerolog.Nop()) },
	} {
		t.Run(name, func(t *testing.T) {
			r, err := opened()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := read(t, r, post.ID); err != nil || got != "two\n" {
				t.Errorf("a: %q, %v", got, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			after, err := os.ReadDir(layers)
			if err != nil || len(after) != len(before) {
				t.Errorf("%d entries in the worker's cache, %v, want the %d of before", len(after), err, len(before))
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left in the temporary directory: %v, %v", left, err)
			}
		})
	}

	name := post.Layers[len(post.Layers)-1].Name
	if err := l.Store.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	r, err := l.Fleet.Reader(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := read(t, r, post.ID); !errors.Is(err, checkpoint.ErrMissingLayer) {
		t.Errorf("without a layer: %v, want %v", err, checkpoint.ErrMissingLayer)
	}
	if _, err := l.Store.Put(t.Context(), name, bytes.NewReader([]byte("not a layer"))); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, r, post.ID); !errors.Is(err, layer.ErrCorrupt) {
		t.Errorf("with a corrupt layer: %v, want %v", err, layer.ErrCorrupt)
	}
}
