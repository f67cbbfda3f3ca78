package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/internal/layer/modeltest"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

func TestMain(m *testing.M) {
	isolate.Main()
	modeltest.Main()
	os.Exit(m.Run())
}

func kinds() []kind {
	return []kind{
		{"Overlay", sandbox.CopyOnWrite, layer.Overlay, os.Getuid() != 0},
		{"Copy", sandbox.CopyOnWrite, layer.Copy, false},
		{"InPlace", sandbox.None, "", false},
	}
}

// Whatever commands do in a sandbox, every checkpoint shows the tree as it was: on the same worker, in a fork, on
// another worker, and exported.
func TestModel_Sandbox(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			modeltest.Model(t, k.on(t, sandboxtest.New(t)), 40, 1, 2)
		})
	}
}

// The same with layers and records in JetStream.
func TestModel_JetStream(t *testing.T) {
	js := eventstest.Server(t)
	subjects, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Declare(t.Context(), js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	var shared sandboxtest.Bed
	if shared.Records, err = kv.Open(t.Context(), js, subjects.Buckets().Checkpoints); err != nil {
		t.Fatal(err)
	}
	if shared.Store, err = objectstore.NewJetStream(js, objectstore.Options{Bucket: subjects.LayersBucket()}); err != nil {
		t.Fatal(err)
	}
	modeltest.Model(t, kinds()[0].on(t, sandboxtest.Beside(t, &shared)), 40, 3)
}

// tree is a checkpoint as its chain reads on the worker, without a mount.
func (w *workers) tree(n int) (layertest.Snapshot, layertest.Options, error) {
	r, err := w.bed().Manager.Restore(context.Background(), w.ids[n])
	if err != nil {
		return nil, layertest.Options{}, err
	}
	defer r.Release()
	return treeOf(r.Chain)
}

func treeOf(chain layer.Chain) (layertest.Snapshot, layertest.Options, error) {
	tree, snap := layer.NewTree(chain), layertest.Snapshot{}
	err := tree.Walk(func(e layer.Entry) error {
		n := layertest.Node{Kind: string(e.Type), Mode: e.Mode, MTime: e.MTime.UnixNano(), Size: e.Size, Link: string(e.Link), Rdev: e.Rdev, Group: string(e.HardLink)}
		if first, ok := snap[n.Group]; ok {
			first.Group = n.Group
			snap[n.Group] = first
		}
		for name, value := range e.Xattrs {
			if n.Xattrs == nil {
				n.Xattrs = map[string]string{}
			}
			n.Xattrs[name] = string(value)
		}
		var err error
		if e.Type == layer.File {
			n.Digest, err = digest(tree, e.Path)
		}
		snap[string(e.Path)] = n
		return err
	})
	return snap, layertest.Options{NoHoles: true, NoOwners: true}, err
}

func digest(tree *layer.Tree, p layer.Path) (string, error) {
	f, err := tree.Open(p)
	if err != nil {
		return "", err
	}
	sum, err := layertest.Digest(f)
	return sum, errors.Join(err, f.Close())
}

// export is a checkpoint exported from the store and unpacked by tar.
func (w *workers) export(n int) (layertest.Snapshot, layertest.Options, error) {
	dir, ignore := filepath.Join(w.dir, "exported"), layertest.Options{NoOwners: true}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, ignore, err
	}
	err := w.untar(w.ids[n], dir)
	if err != nil {
		return nil, ignore, errors.Join(err, modeltest.RemoveTree(dir))
	}
	snap, err := layertest.Take(dir)
	return snap, ignore, errors.Join(err, modeltest.RemoveTree(dir))
}

func (w *workers) untar(id, dir string) error {
	cp, err := checkpoint.Load(context.Background(), w.bed().Records, id)
	if err != nil {
		return err
	}
	r, wr := io.Pipe()
	go func() { wr.CloseWithError(checkpoint.Export(context.Background(), cp, w.bed().Store, wr)) }()
	tar := exec.Command("tar", "--xattrs", "-xpS", "-C", dir)
	var complaint strings.Builder
	tar.Stdin, tar.Stderr = r, &complaint
	if err := errors.Join(tar.Run(), r.Close()); err != nil {
		return fmt.Errorf("tar: %w: %s", err, complaint.String())
	}
	return nil
}
