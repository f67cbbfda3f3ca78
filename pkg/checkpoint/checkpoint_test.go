package checkpoint_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

const planID = "01J00000000000000000000000"

func TestMain(m *testing.M) {
	isolate.Main()
	os.Exit(m.Run())
}

func box(t *testing.T, bed *sandboxtest.Bed) *sandbox.Sandbox {
	t.Helper()
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "one\n", "d/b": "two\n"})
	chain, _ := bed.Base(t, dir)
	s := bed.Sandbox(t, chain)
	bed.Manager.Adopt(s, len(chain))
	return s
}

func take(t *testing.T, bed *sandboxtest.Bed, s *sandbox.Sandbox, phase checkpoint.Phase) checkpoint.Checkpoint {
	t.Helper()
	cp, err := bed.Manager.Create(t.Context(), s, planID, phase, map[string]string{"k": "v"})
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func store(t *testing.T, bed *sandboxtest.Bed, id string) checkpoint.Checkpoint {
	t.Helper()
	cp, err := bed.Manager.Store(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func TestManager_CreateAndRollbackTo(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	pre := take(t, bed, s, checkpoint.PreExecute)
	sandboxtest.Run(t, s, "echo 1 >f")
	first := take(t, bed, s, checkpoint.Step)
	sandboxtest.Run(t, s, "echo 2 >f; echo more >g; rm a")
	take(t, bed, s, checkpoint.Step)
	if err := bed.Manager.RollbackTo(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got, want := sandboxtest.Run(t, s, "cat f; ls"), "1\na\nd\nf\n"; got != want {
		t.Errorf("at the first checkpoint: %q, want %q", got, want)
	}
	if err := bed.Manager.RollbackTo(t.Context(), pre); err != nil {
		t.Fatal(err)
	}
	if got, want := sandboxtest.Run(t, s, "ls"), "a\nd\n"; got != want {
		t.Errorf("at pre_execute: %q, want %q", got, want)
	}
}

func TestManager_StoreMakesPortable(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	sandboxtest.Run(t, s, "echo 1 >f")
	local := take(t, bed, s, checkpoint.Step)
	if local.Portable || len(local.Layers) != 0 {
		t.Errorf("before store: %+v, want neither portable nor with layers", local)
	}
	if all, err := checkpoint.All(t.Context(), bed.Records); err != nil || len(all) != 0 {
		t.Errorf("records before store: %v, %v, want none", all, err)
	}
	stored := store(t, bed, local.ID)
	if !stored.Portable || len(stored.Base) != 1 || len(stored.Layers) != 1 || stored.SizeBytes != stored.Layers[0].Size || stored.SizeBytes == 0 {
		t.Errorf("after store: %+v", stored)
	}
	loaded, err := checkpoint.Load(t.Context(), bed.Records, local.ID)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(stored, loaded); d != "" {
		t.Errorf("record (-stored +loaded):\n%s", d)
	}
	for _, ref := range append(loaded.Base, loaded.Layers...) {
		if _, err := bed.Store.Stat(t.Context(), ref.Name); err != nil {
			t.Errorf("layer of the record: %v", err)
		}
	}
}

// Case A2: any number of rounds, each on another worker, and the discarded branch is gone.
func TestManager_RestoreOnAnotherWorker(t *testing.T) {
	a := sandboxtest.New(t)
	b := sandboxtest.Beside(t, a)
	s := box(t, a)
	sandboxtest.Run(t, s, "echo 1 >f")
	one := store(t, a, take(t, a, s, checkpoint.Step).ID)
	sandboxtest.Run(t, s, "echo 2 >f")
	store(t, a, take(t, a, s, checkpoint.Step).ID)

	onB := resume(t, b, one.ID)
	sandboxtest.Run(t, onB, "test $(cat f) = 1; echo 3 >g")
	branch := store(t, b, take(t, b, onB, checkpoint.Step).ID)

	again := resume(t, a, branch.ID)
	if got, want := sandboxtest.Run(t, again, "cat f g; ls"), "1\n3\na\nd\nf\ng\n"; got != want {
		t.Errorf("the branch on the first worker: %q, want %q", got, want)
	}
	if err := a.Manager.RollbackTo(t.Context(), checkpoint.Checkpoint{ID: one.ID, SandboxID: again.ID()}); err != nil {
		t.Fatal(err)
	}
	if got, want := sandboxtest.Run(t, again, "cat f; ls"), "1\na\nd\nf\n"; got != want {
		t.Errorf("back at the first: %q, want %q", got, want)
	}
}

func resume(t *testing.T, bed *sandboxtest.Bed, id string) *sandbox.Sandbox {
	t.Helper()
	r, err := bed.Manager.Restore(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s := bed.Sandbox(t, r.Chain)
	bed.Manager.Adopt(s, r.BaseLayers)
	return s
}

// flipping is a store that gives every layer with one byte changed.
type flipping struct{ objectstore.Store }

func (f flipping) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	r, err := f.Store.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	b[len(b)/2] ^= 1
	return io.NopCloser(bytes.NewReader(b)), nil
}

func TestManager_RestoreRefusesCorruptLayers(t *testing.T) {
	a := sandboxtest.New(t)
	s := box(t, a)
	sandboxtest.Run(t, s, "head -c 100000 /dev/urandom >f")
	cp := store(t, a, take(t, a, s, checkpoint.Step).ID)
	b := sandboxtest.Beside(t, &sandboxtest.Bed{Store: flipping{a.Store}, Records: a.Records})
	if _, err := b.Manager.Restore(t.Context(), cp.ID); err == nil {
		t.Fatal("a corrupt layer was restored")
	}
	if ids, err := b.Host.Cache.Layers(); err != nil || len(ids) != 0 {
		t.Errorf("cache after a corrupt layer: %v, %v, want nothing", ids, err)
	}
}

func TestManager_RestoreNamesAMissingLayer(t *testing.T) {
	a := sandboxtest.New(t)
	s := box(t, a)
	sandboxtest.Run(t, s, "echo 1 >f")
	cp := store(t, a, take(t, a, s, checkpoint.Step).ID)
	if err := a.Store.Delete(t.Context(), cp.Layers[0].Name); err != nil {
		t.Fatal(err)
	}
	b := sandboxtest.Beside(t, a)
	_, err := b.Manager.Restore(t.Context(), cp.ID)
	if !errors.Is(err, checkpoint.ErrMissingLayer) || !strings.Contains(err.Error(), cp.Layers[0].Name) {
		t.Errorf("error %v, want %v with the layer's name", err, checkpoint.ErrMissingLayer)
	}
}

func TestManager_ConcurrentStoresUploadOnce(t *testing.T) {
	counting := &counted{Store: objectstore.NewMemory()}
	bed := sandboxtest.New(t)
	bed = sandboxtest.Beside(t, &sandboxtest.Bed{Store: counting, Records: bed.Records})
	s := box(t, bed)
	sandboxtest.Run(t, s, "echo 1 >f")
	cp := take(t, bed, s, checkpoint.Step)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := bed.Manager.Store(t.Context(), cp.ID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := counting.count(); got != 2 {
		t.Errorf("%d uploads, want 2: the base and the layer", got)
	}
}

type counted struct {
	objectstore.Store
	mu   sync.Mutex
	puts int
}

func (c *counted) Put(ctx context.Context, name string, r io.Reader) (objectstore.Info, error) {
	c.mu.Lock()
	c.puts++
	c.mu.Unlock()
	return c.Store.Put(ctx, name, r)
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.puts
}

func TestManager_ListDelete(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	var want []string
	for range 3 {
		sandboxtest.Run(t, s, "date +%N >>f")
		want = append(want, take(t, bed, s, checkpoint.Step).ID)
	}
	store(t, bed, want[0])
	if got := list(t, bed, s.ID()); !slices.Equal(got, want) {
		t.Errorf("list %v, want %v", got, want)
	}
	for _, id := range want[:2] {
		if err := bed.Manager.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(t, bed, s.ID()); !slices.Equal(got, want[2:]) {
		t.Errorf("list after delete %v, want %v", got, want[2:])
	}
	if err := bed.Manager.Delete(t.Context(), want[0]); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("second delete: %v, want %v", err, checkpoint.ErrNotFound)
	}
}

func list(t *testing.T, bed *sandboxtest.Bed, sandboxID string) (ids []string) {
	t.Helper()
	cps, err := bed.Manager.List(t.Context(), sandboxID)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cps {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestManager_ForgetKeepsWhatIsPortable(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	sandboxtest.Run(t, s, "echo 1 >f")
	kept := store(t, bed, take(t, bed, s, checkpoint.Step).ID)
	sandboxtest.Run(t, s, "echo 2 >f")
	dropped := take(t, bed, s, checkpoint.Step)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	bed.Manager.Forget(s.ID())
	if _, err := bed.Manager.Restore(t.Context(), kept.ID); err != nil {
		t.Errorf("portable checkpoint after its sandbox: %v", err)
	}
	if _, err := bed.Manager.Restore(t.Context(), dropped.ID); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("local checkpoint after its sandbox: %v, want %v", err, checkpoint.ErrNotFound)
	}
	if err := bed.Manager.RollbackTo(t.Context(), kept); !errors.Is(err, checkpoint.ErrNoSandbox) {
		t.Errorf("roll back a sandbox that is gone: %v, want %v", err, checkpoint.ErrNoSandbox)
	}
}

func TestManager_Describe(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	sandboxtest.Run(t, s, "echo ONE >a; echo new >n; rm d/b")
	cp := take(t, bed, s, checkpoint.PostExecute)
	want, err := bed.Manager.Describe(t.Context(), cp.ID)
	if err != nil {
		t.Fatal(err)
	}
	stored := store(t, bed, cp.ID)
	got, err := checkpoint.GetDelta(t.Context(), bed.Store, stored.Delta)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("delta (-described +stored):\n%s", d)
	}
	for _, line := range []string{"-one", "+ONE", "+new", "-two"} {
		if !strings.Contains(string(got.Diff), line+"\n") {
			t.Errorf("diff lacks %q:\n%s", line, got.Diff)
		}
	}
	if string(got.Base["a"]) != "one\n" || string(got.Base["d/b"]) != "two\n" || got.Base["n"] != nil {
		t.Errorf("base bytes %q", got.Base)
	}
}

func TestExport_FullTree(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	sandboxtest.Run(t, s, "echo ONE >a; rm -r d; mkdir e; echo x >e/x")
	cp := store(t, bed, take(t, bed, s, checkpoint.Step).ID)
	var out bytes.Buffer
	if err := checkpoint.Export(t.Context(), cp, bed.Store, &out); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.Trim(strings.TrimPrefix(h.Name, "./"), "/")] = string(b)
	}
	delete(got, "")
	delete(got, ".")
	if d := cmp.Diff(map[string]string{"a": "ONE\n", "e": "", "e/x": "x\n"}, got); d != "" {
		t.Errorf("exported (-want +got):\n%s", d)
	}
}
