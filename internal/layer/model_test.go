package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/internal/layer/modeltest"
)

// Random histories of changes, checkpoints, rollbacks and moves to another cache show the same tree as a plain copy,
// whatever keeps the tree. WARMFLEET_MODEL_SEED, _OPS and _COUNT play others.
func TestModel(t *testing.T) {
	for _, d := range modelDrivers(t) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			modeltest.Model(t, d, 80, modelSeeds(d.Name)...)
		})
	}
	for _, fs := range []string{"xfs", "btrfs"} {
		t.Run("Reflink-"+fs, func(t *testing.T) {
			// The copy lies there, too: file systems differ in the times that a rename changes.
			t.Setenv("TMPDIR", layertest.Loop(t, fs))
			modeltest.Model(t, reflinkDriver(t), 80, 1, 4)
		})
	}
}

// modelSeeds are those that are played with a driver: more where the kernel keeps changes in a form of its own.
func modelSeeds(driver string) []uint64 {
	if strings.HasPrefix(driver, "Overlay") {
		return []uint64{1, 2, 3}
	}
	return []uint64{2, 3}
}

func reflinkDriver(t *testing.T) modeltest.Driver {
	k := modelKind{
		name: "Reflink", opt: testOptions(t), profile: modeltest.Profile{Setuid: true},
		open: func(w *modelWorld, chain Chain) (View, error) {
			return w.cache.Open(context.Background(), Reflink, chain)
		},
		run: func(v View, job modeltest.Job) (modeltest.Report, error) {
			job.Dir = v.Mount().Bind
			return modeltest.Do(job), nil
		},
		plain: func(job modeltest.Job) (modeltest.Report, error) { return modeltest.Do(job), nil },
	}
	return modeltest.Driver{Name: k.name, Profile: k.profile, Plain: k.plain, Start: k.start}
}

// Two names of a file that move with their directory, layer after layer, stay one file when it is changed.
func TestModel_LinksWithinAMovedDirectory(t *testing.T) {
	for _, d := range modelDrivers(t) {
		t.Run(d.Name, func(t *testing.T) {
			modeltest.History(t, d,
				modeltest.Change(modeltest.Op{Do: modeltest.Mkdir, Path: "a", Mode: 0o755}),
				modeltest.Change(modeltest.Op{Do: modeltest.Create, Path: "a/f", N: 5, Mode: 0o644}),
				modeltest.Event{Do: modeltest.StepStart},
				modeltest.Change(modeltest.Op{Do: modeltest.Rename, Path: "a", To: "b"}),
				modeltest.Change(modeltest.Op{Do: modeltest.Link, Path: "b/f", To: "b/g"}),
				modeltest.Event{Do: modeltest.StepCheckpoint, N: 1},
				modeltest.Change(modeltest.Op{Do: modeltest.Rename, Path: "b", To: "c"}),
				modeltest.Event{Do: modeltest.StepCheckpoint, N: 2},
				modeltest.Change(modeltest.Op{Do: modeltest.Edit, Path: "c/g", N: 3, Seed: 1}),
				modeltest.Event{Do: modeltest.StepCheckpoint, N: 3},
				modeltest.Event{Do: modeltest.StepRollback, N: 2},
				modeltest.Event{Do: modeltest.StepMove, N: 3},
			)
		})
	}
}

func modelDrivers(t *testing.T) []modeltest.Driver {
	root := os.Getuid() == 0
	direct := func(v View, job modeltest.Job) (modeltest.Report, error) {
		job.Dir = v.Mount().Bind
		return modeltest.Do(job), nil
	}
	mounted := func(trusted bool) func(View, modeltest.Job) (modeltest.Report, error) {
		return func(v View, job modeltest.Job) (modeltest.Report, error) {
			m := v.Mount()
			return modeltest.InOverlay(job, layertest.Overlay{Lowers: m.Lowers, Upper: m.Upper, Work: m.Work, Trusted: trusted})
		}
	}
	with := func(d Driver) func(*modelWorld, Chain) (View, error) {
		return func(w *modelWorld, chain Chain) (View, error) { return w.cache.Open(context.Background(), d, chain) }
	}
	overlay := with(Overlay)
	o := testOptions(t)
	user := o
	user.Trusted = false
	plain := func(job modeltest.Job) (modeltest.Report, error) { return modeltest.Do(job), nil }
	kinds := []modelKind{
		{
			name: "OverlayUser", opt: user, open: overlay, run: mounted(false), lax: true,
			ignore: layertest.Options{NoOwners: true, NoLinks: true}, profile: modeltest.Profile{Setuid: true},
			plain: func(job modeltest.Job) (modeltest.Report, error) {
				return modeltest.Process(job, layertest.Namespaces(false))
			},
		},
		{
			name: "Copy", opt: o, run: direct, plain: plain, profile: modeltest.Profile{Setuid: true},
			open: with(Copy),
		},
		{name: "InPlace", opt: o, run: direct, plain: plain, profile: modeltest.Profile{Setuid: true, Owner: root}, open: openRestored},
	}
	if root {
		kinds = append(kinds, modelKind{name: "OverlayRoot", opt: o, open: overlay, run: mounted(true), plain: plain, profile: modeltest.Profile{Setuid: true}})
	}
	var drivers []modeltest.Driver
	for _, k := range kinds {
		drivers = append(drivers, modeltest.Driver{Name: k.name, Profile: k.profile, Plain: k.plain, Start: k.start})
	}
	return drivers
}

// openRestored is an in-place view of a directory of its own.
func openRestored(w *modelWorld, chain Chain) (View, error) {
	dir, err := os.MkdirTemp(w.dir, "in-place")
	if err != nil {
		return nil, err
	}
	idx, err := w.cache.Restore(context.Background(), dir, nil, chain)
	if err != nil {
		return nil, err
	}
	return w.cache.OpenInPlace(context.Background(), dir, chain, idx)
}

// modelKind is a way to keep a tree, under test.
type modelKind struct {
	name    string
	profile modeltest.Profile
	opt     Options
	plain   func(modeltest.Job) (modeltest.Report, error)
	open    func(*modelWorld, Chain) (View, error)
	run     func(View, modeltest.Job) (modeltest.Report, error)
	lax     bool
	ignore  layertest.Options
}

// modelWorld is a view in one of two caches, and its checkpoints.
type modelWorld struct {
	kind   modelKind
	dir    string
	cache  *Cache
	other  *Cache
	view   View
	kept   map[int]Chain
	stored map[string][]byte // packed layers by stored name
}

func (k modelKind) start(from string) (*modeltest.Subject, error) {
	w := &modelWorld{kind: k, kept: map[int]Chain{}, stored: map[string][]byte{}}
	if err := w.open(from); err != nil {
		return nil, err
	}
	return &modeltest.Subject{
		Run:        func(job modeltest.Job) (modeltest.Report, error) { return k.run(w.view, job) },
		Checkpoint: w.checkpoint,
		Rollback:   func(n int) error { return w.view.Reset(context.Background(), w.here(n)) },
		Move:       w.move,
		Views:      map[string]modeltest.View{"tree": w.tree, "restore": w.restore, "export": w.export},
		Always:     []string{"tree"},
		Close:      w.close, Lax: k.lax, Ignore: k.ignore,
	}, nil
}

func (w *modelWorld) open(from string) (err error) {
	if w.dir, err = os.MkdirTemp("", "model"); err != nil {
		return err
	}
	if w.cache, err = OpenCache(filepath.Join(w.dir, "one"), w.kind.opt); err != nil {
		return err
	}
	if w.other, err = OpenCache(filepath.Join(w.dir, "two"), w.kind.opt); err != nil {
		return err
	}
	l, _, _, err := w.cache.Capture(context.Background(), from, nil)
	if err != nil {
		return err
	}
	w.view, err = w.kind.open(w, Chain{l})
	return err
}

func (w *modelWorld) close() error {
	return errors.Join(w.view.Close(), w.cache.Close(), w.other.Close(), RemoveTree(w.dir))
}

func (w *modelWorld) checkpoint(n int) (bool, error) {
	_, changed, err := w.view.Freeze(context.Background())
	w.kept[n] = w.view.Chain()
	return changed, err
}

// here is a checkpoint's chain in the cache of the view.
func (w *modelWorld) here(n int) Chain { return w.kept[n] }

// move brings every checkpoint to the other cache, and opens a view of one there.
func (w *modelWorld) move(n int) error {
	for n, chain := range w.kept {
		moved, err := w.ship(chain)
		if err != nil {
			return err
		}
		w.kept[n] = moved
	}
	if err := w.view.Close(); err != nil {
		return err
	}
	w.cache, w.other = w.other, w.cache
	var err error
	w.view, err = w.kind.open(w, w.kept[n])
	return err
}

// ship packs a chain and unpacks it in the other cache.
func (w *modelWorld) ship(chain Chain) (Chain, error) {
	var moved Chain
	for i := range chain {
		name, err := w.pack(chain, i)
		if err != nil {
			return nil, err
		}
		there, known := w.other.Find(name)
		if !known {
			if there, err = w.other.Unpack(context.Background(), moved, name, bytes.NewReader(w.stored[name])); err != nil {
				return nil, err
			}
		}
		moved = append(moved, there)
	}
	return moved, nil
}

// pack gives the stored name of a layer of a chain, which is stored as far as it differs from those below.
func (w *modelWorld) pack(chain Chain, i int) (string, error) {
	known, err := w.cache.Get(chain[i].ID)
	if err != nil {
		return "", err
	}
	if known.Name != "" && w.stored[known.Name] != nil {
		return known.Name, nil
	}
	var b bytes.Buffer
	packed, err := w.cache.Pack(context.Background(), chain[:i], chain[i], &b)
	w.stored[packed.Name] = b.Bytes()
	return packed.Name, err
}

// tree is a checkpoint as its chain reads, without a mount.
func (w *modelWorld) tree(n int) (layertest.Snapshot, layertest.Options, error) {
	tree, snap := NewTree(w.kept[n]), layertest.Snapshot{}
	err := tree.Walk(func(e Entry) error {
		n, err := modelNode(tree, e)
		if first, ok := snap[string(e.HardLink)]; ok && e.HardLink != "" {
			first.Group = string(e.HardLink)
			snap[first.Group] = first
		}
		snap[string(e.Path)] = n
		if alone, lookErr := tree.Lookup(e.Path); lookErr != nil || alone.HardLink != e.HardLink {
			err = errors.Join(err, lookErr, fmt.Errorf("Lookup(%q) gives hard link %q, Walk %q", e.Path, alone.HardLink, e.HardLink))
		}
		return err
	})
	return snap, layertest.Options{NoHoles: true, NoOwners: !w.kind.profile.Owner}, err
}

func modelNode(tree *Tree, e Entry) (layertest.Node, error) {
	n := layertest.Node{
		Kind: string(e.Type), Mode: e.Mode, MTime: e.MTime.UnixNano(), Size: e.Size, Link: string(e.Link),
		Rdev: e.Rdev, Group: string(e.HardLink), UID: uint32(max(e.UID, 0)), GID: uint32(max(e.GID, 0)), // in the model Self is 0
	}
	for name, value := range e.Xattrs {
		if n.Xattrs == nil {
			n.Xattrs = map[string]string{}
		}
		n.Xattrs[name] = string(value)
	}
	if e.Type != File {
		return n, nil
	}
	f, err := tree.Open(e.Path)
	if err != nil {
		return n, err
	}
	digest, err := digestOf(f)
	n.Digest = strings.TrimPrefix(digest, "sha256:")
	return n, errors.Join(err, f.Close())
}

// restore is a checkpoint restored to an empty directory.
func (w *modelWorld) restore(n int) (layertest.Snapshot, layertest.Options, error) {
	return w.unpacked("restored", func(dir string) error {
		_, err := w.cache.Restore(context.Background(), dir, nil, w.kept[n])
		return err
	})
}

// export is a checkpoint exported and unpacked by tar.
func (w *modelWorld) export(n int) (layertest.Snapshot, layertest.Options, error) {
	return w.unpacked("exported", func(dir string) error {
		var sources []Source
		for i := range w.kept[n] {
			name, err := w.pack(w.kept[n], i)
			if err != nil {
				return err
			}
			sources = append(sources, Source{Name: name, Open: func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(w.stored[name])), nil
			}})
		}
		var b bytes.Buffer
		if err := Export(context.Background(), sources, &b); err != nil {
			return err
		}
		tar := exec.Command("tar", "--xattrs", "-xpS", "-C", dir)
		tar.Stdin = &b
		if out, err := tar.CombinedOutput(); err != nil {
			return fmt.Errorf("tar: %w: %s", err, out)
		}
		return nil
	})
}

// unpacked describes what fill makes in an empty directory.
func (w *modelWorld) unpacked(name string, fill func(dir string) error) (layertest.Snapshot, layertest.Options, error) {
	dir, o := filepath.Join(w.dir, name), layertest.Options{NoOwners: !w.kind.profile.Owner}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, o, err
	}
	err := fill(dir)
	if err != nil {
		return nil, o, errors.Join(err, RemoveTree(dir))
	}
	snap, err := layertest.Take(dir)
	return snap, o, errors.Join(err, RemoveTree(dir))
}
