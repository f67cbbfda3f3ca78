package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRecord_RoundTripAndDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	var got map[string]int
	if err := ReadRecord(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("absent: got %v, want fs.ErrNotExist", err)
	}
	if err := WriteRecord(path, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	if err := ReadRecord(path, &got); err != nil || got["a"] != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ReadRecord(path, &got); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut at %d: got %v, want ErrDamaged", cut, err)
		}
	}
}

func TestWriteFile_FailedWriteLeavesOldContent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteRecord(path, 1); err != nil {
		t.Fatal(err)
	}
	if err := WriteRecord(path, func() {}); err == nil {
		t.Fatal("a value that is no JSON was stored")
	}
	if err := os.WriteFile(filepath.Join(dir, tempPrefix+"left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SweepTemp(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("got %v, %v; want only f", entries, err)
	}
	var got int
	if err := ReadRecord(path, &got); err != nil || got != 1 {
		t.Fatalf("got %d, %v", got, err)
	}
}

func TestLock_ExcludesAndHonoursContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second lock: got %v, want deadline exceeded", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUses_RemoveUnused(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenUses(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenUses(dir) // stands for another process: flock is per open file
	if err != nil {
		t.Fatal(err)
	}
	one, err := a.Retain([]string{"x", "y"})
	if err != nil {
		t.Fatal(err)
	}
	two, err := a.Retain([]string{"x"})
	if err != nil {
		t.Fatal(err)
	}
	remove := func(u *Uses, id string) bool {
		t.Helper()
		ok, err := u.RemoveUnused(id, func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if remove(a, "x") || remove(other, "x") || remove(other, "y") {
		t.Fatal("removed what is in use")
	}
	one()
	one()
	if !remove(other, "y") {
		t.Fatal("y is not in use")
	}
	if remove(other, "x") {
		t.Fatal("x is still in use once")
	}
	two()
	if !remove(a, "x") {
		t.Fatal("x is not in use")
	}
	failed := errors.New("no")
	if ok, err := a.RemoveUnused("x", func() error { return failed }); ok || !errors.Is(err, failed) {
		t.Fatalf("got %v, %v; want the failure", ok, err)
	}
}

func TestGroup_SimultaneousCallersCostTwoRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int64]
		var runs atomic.Int64
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				_, err := g.Do(t.Context(), "k", func(context.Context) (int64, error) {
					<-time.After(time.Second) // fake time
					return runs.Add(1), nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := runs.Load(); got != 2 {
			t.Errorf("got %d runs, want 2", got)
		}
	})
}

func TestGroup_NeverServesWorkThatBeganEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int64]
		var world, saw atomic.Int64
		read := func(context.Context) (int64, error) {
			v := world.Load()
			<-time.After(time.Second) // fake time
			return v, nil
		}
		go func() { _, _ = g.Do(t.Context(), "k", read) }()
		synctest.Wait()
		world.Store(1)
		v, err := g.Do(t.Context(), "k", read)
		saw.Store(v)
		if err != nil || saw.Load() != 1 {
			t.Errorf("got %d, %v; want 1", saw.Load(), err)
		}
	})
}

func TestGroup_AbandonedRunIsNotInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string]
		say := func(s string) func(context.Context) (string, error) {
			return func(ctx context.Context) (string, error) { return s, ctx.Err() }
		}
		gate, ended := make(chan struct{}), make(chan error, 2)
		go func() {
			_, err := g.Do(t.Context(), "k", func(context.Context) (string, error) { <-gate; return "first", nil })
			ended <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := g.Do(ctx, "k", say("abandoned")); ended <- err }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want cancelled", err)
		}
		time.AfterFunc(time.Second, func() { close(gate) })
		got, err := g.Do(t.Context(), "k", say("fresh"))
		if got != "fresh" || err != nil {
			t.Errorf("got %q, %v; want fresh", got, err)
		}
		if err := <-ended; err != nil {
			t.Errorf("first: %v", err)
		}
	})
}

func TestGroup_RunEndsWhenEveryCallerGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string]
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stopped := make(chan error, 1)
		_, err := g.Do(ctx, "k", func(ctx context.Context) (string, error) {
			<-ctx.Done()
			stopped <- ctx.Err()
			return "", fmt.Errorf("ended: %w", ctx.Err())
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want deadline exceeded", err)
		}
		if err := <-stopped; !errors.Is(err, context.Canceled) {
			t.Errorf("run: got %v, want cancelled", err)
		}
	})
}
