package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// grow refreshes until the chain of the path has n layers.
func (w *world) grow(n int) Base {
	w.t.Helper()
	for i := 1; ; i++ {
		w.write(fmt.Sprintf("d%d/f", i%5), fmt.Sprint("content ", i))
		b, err := w.FromPath(w.t.Context(), w.path)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(b.Chain) >= n {
			w.t.Cleanup(b.Release)
			return b
		}
		b.Release()
	}
}

// A refresh that makes a chain long does not wait for it to become short: Run does that, and what is in use stays.
func TestStore_RunSquashes(t *testing.T) {
	w := newWorld(t, Options{})
	w.write("h", "linked")
	if err := errors.Join(os.Mkdir(w.at("d1"), 0o755), os.Symlink("nowhere", w.at("x")), os.Link(w.at("h"), w.at("d1/h")), os.Chtimes(w.at("h"), old, old)); err != nil {
		t.Fatal(err)
	}
	held := w.grow(maxLayers + 1)
	if n := len(w.long); n != 1 {
		t.Errorf("%d paths wait to be squashed, want this one", n)
	}
	squashed := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	w.opt.Hook = func(point string) error {
		if point == "replaced" {
			close(squashed)
		}
		return nil
	}
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	<-squashed
	stop()
	<-ended
	b := w.get(w.path)
	if b.Changed || len(b.Chain) != 1 {
		t.Errorf("got changed %v, %d layers, want the same image in one", b.Changed, len(b.Chain))
	}
	w.wantExact(b.Chain)
	w.wantExact(held.Chain)
	linked, err := layer.NewTree(b.Chain).Lookup("h")
	if err != nil || linked.HardLink != "d1/h" || !linked.MTime.Equal(old) {
		t.Errorf("the other name of a file: %+v, %v", linked, err)
	}
	w.write("d1/f", "CONTENT 1")
	w.wantExact(w.get(w.path).Chain)
}

// What is added while layers are merged stays on top of the merged one.
func TestStore_ChangedWhileSquashed(t *testing.T) {
	w := newWorld(t, Options{})
	w.grow(maxLayers + 1)
	once := true
	w.opt.Hook = func(point string) error {
		if point == "merge" && once {
			once = false
			w.write("d1/f", "meanwhile")
			w.get(w.path)
		}
		return nil
	}
	if err := w.squash(t.Context(), w.path); err != nil {
		t.Fatal(err)
	}
	if b := w.get(w.path); b.Changed || len(b.Chain) != 2 {
		t.Errorf("got changed %v, %d layers, want the merged one and the new one", b.Changed, len(b.Chain))
	}
	w.wantExact(w.get(w.path).Chain)
}

// An image that is gone when its layers are merged is not brought back, and nothing is left of the work.
func TestStore_EvictedWhileSquashed(t *testing.T) {
	w := newWorld(t, Options{})
	held := w.grow(maxLayers + 1)
	held.Release()
	w.opt.Hook = func(point string) error {
		if point == "merged" {
			items, err := w.Items()
			if err != nil || len(items) != 1 {
				return fmt.Errorf("%d images, %w", len(items), err)
			}
			gone, err := w.Remove(t.Context(), items[0].Key)
			if err != nil || !gone {
				return fmt.Errorf("removed %v: %w", gone, err)
			}
		}
		return nil
	}
	if err := w.squash(t.Context(), w.path); err != nil {
		t.Fatal(err)
	}
	if left, err := w.cache.Layers(); err != nil || len(left) != 0 {
		t.Errorf("left in the cache: %q, %v", left, err)
	}
}

// stopped is what the tests below stop in the middle.
var stopped = map[string]func(w *world) error{
	"Squash": func(w *world) error { return w.squash(w.t.Context(), w.path) },
	"Remove": func(w *world) error {
		items, err := w.Items()
		for _, it := range items {
			_, failed := w.Remove(w.t.Context(), it.Key)
			err = errors.Join(err, failed)
		}
		return err
	},
}

// stopEnv makes the test below the process that is killed: what it does, at which step, where.
const stopEnv = "BASE_TEST_STOP"

// Whichever step of a squash or removal is the last that a process makes, by a failure or by being killed, the next one
// finds an image or makes one, and nothing is left that a later refresh or removal does not take away.
func TestStore_StoppedAtEveryStep(t *testing.T) {
	if victim := os.Getenv(stopEnv); victim != "" {
		dieAt(t, strings.Split(victim, "\n"))
		return
	}
	for what, do := range stopped {
		t.Run(what+"Failed", func(t *testing.T) {
			sweep(t, 0, func(w *world, n int) bool {
				w.opt.Hook = failAt(n, func() error { return errStop })
				err := do(w)
				if err != nil && !errors.Is(err, errStop) {
					t.Fatal(err)
				}
				return err != nil
			})
		})
		t.Run(what+"Killed", func(t *testing.T) {
			sweep(t, 1, func(w *world, n int) bool {
				cmd := exec.Command("/proc/self/exe", "-test.run=^TestStore_StoppedAtEveryStep$")
				cmd.Env = append(os.Environ(), stopEnv+"="+strings.Join([]string{what, strconv.Itoa(n), w.state, w.path}, "\n"))
				out, err := cmd.CombinedOutput()
				if err != nil && !strings.Contains(err.Error(), "killed") {
					t.Fatalf("%v: %s", err, out)
				}
				return err != nil
			})
		})
	}
}

// sweep stops at the first step, the second and so on until none is left to stop at.
func sweep(t *testing.T, orphans int, stop func(w *world, n int) bool) {
	for n := 1; ; n++ {
		w := newWorld(t, Options{})
		w.grow(maxLayers + 1).Release()
		if !stop(w, n) {
			if n == 1 {
				t.Error("no step was met")
			}
			return
		}
		w.open(Options{})
		w.afterStop(n, orphans)
	}
}

// errStop is what a test's hook fails a step with.
var errStop = errors.New("stopped here")

// failAt makes the nth hook do something.
func failAt(n int, do func() error) func(string) error {
	return func(string) error {
		if n--; n == 0 {
			return do()
		}
		return nil
	}
}

func dieAt(t *testing.T, args []string) {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, state: args[2], path: args[3]}
	w.open(Options{})
	w.opt.Hook = failAt(n, func() error { return unix.Kill(os.Getpid(), unix.SIGKILL) })
	if err := stopped[args[0]](w); err != nil {
		t.Fatal(err)
	}
}

// afterStop checks that a path is as good as ever; a killed squash may leave one layer that nothing names.
func (w *world) afterStop(n, orphans int) {
	w.t.Helper()
	w.wantExact(w.get(w.path).Chain)
	items, err := w.Items()
	if err != nil || len(items) != 1 {
		w.t.Fatalf("after step %d: %d images, %v", n, len(items), err)
	}
	if err := w.squash(w.t.Context(), w.path); err != nil {
		w.t.Fatal(err)
	}
	w.write("f", "changed")
	w.get(w.path)
	known, err := w.Layers()
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := w.cache.Layers()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, id := range known {
		if !slices.Contains(all, id) {
			w.t.Errorf("after step %d: layer %s is gone", n, id)
		}
	}
	if len(all) > len(known)+orphans {
		w.t.Errorf("after step %d: %d layers for %d that records name", n, len(all), len(known))
	}
}
