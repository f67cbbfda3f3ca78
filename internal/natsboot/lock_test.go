package natsboot

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"
)

func acquire(t *testing.T, dir string) *Lock {
	t.Helper()
	lock, joined, err := Acquire(t.Context(), dir)
	must(t, err)
	if joined != nil {
		t.Fatalf("joined process %d, want the lock", joined.PID)
	}
	t.Cleanup(func() { _ = lock.Close() }) // closed already by some tests
	return lock
}

// Two processes race for one directory at the same instant: one serves, the other joins.
func TestAcquire_Race(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		children := []*process{startChild(t, dir), startChild(t, dir), startChild(t, dir)}
		roles := map[string]int{}
		urls := map[string]int{}
		for _, c := range children {
			role, url := c.says(t)
			roles[role]++
			urls[url]++
		}
		if roles["holder"] != 1 || roles["joined"] != 2 || len(urls) != 1 {
			t.Fatalf("got %v at %v, want one holder and two joined at one URL", roles, urls)
		}
		for _, c := range children {
			c.kill()
		}
	}
}

func TestAcquire_AfterKill(t *testing.T) {
	dir := t.TempDir()
	holder := startChild(t, dir)
	if role, rest := holder.says(t); role != "holder" {
		t.Fatalf("child: %s %s", role, rest)
	}
	_, joined, err := Acquire(t.Context(), dir)
	must(t, err)
	if joined == nil || joined.PID != holder.cmd.Process.Pid {
		t.Fatalf("got %+v, want to join process %d", joined, holder.cmd.Process.Pid)
	}
	must(t, joined.Close())
	holder.kill()
	start := time.Now()
	acquire(t, dir)
	if took := time.Since(start); took > time.Second {
		t.Errorf("the lock of a killed process took %v", took)
	}
}

// nats.env of an earlier run is no sign of a ready holder.
func TestAcquire_HolderNotReady(t *testing.T) {
	dir := t.TempDir()
	must(t, Env{URL: "nats://127.0.0.1:1", User: "u", Password: "p"}.write(dir))
	lock := acquire(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, joined, err := Acquire(ctx, dir)
	if !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || joined != nil {
		t.Fatalf("got %+v, %v, want ErrHeld after the deadline", joined, err)
	}
	if pid := strconv.Itoa(holderPID(dir)); !strings.Contains(err.Error(), pid) {
		t.Errorf("error %q does not name process %s", err, pid)
	}
	must(t, lock.ready())
	_, joined, err = Acquire(t.Context(), dir)
	must(t, err)
	if joined == nil || joined.Env.User != "u" {
		t.Errorf("got %+v, want to join", joined)
	}
	must(t, joined.Close())
}

// The holder stays while others are joined, and nobody joins one that ends.
func TestLock_Drain(t *testing.T) {
	dir := t.TempDir()
	must(t, Env{URL: "nats://127.0.0.1:1", User: "u", Password: "p"}.write(dir))
	lock := acquire(t, dir)
	must(t, lock.ready())
	_, joined, err := Acquire(t.Context(), dir)
	must(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := lock.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Drain with one joined: got %v, want the deadline", err)
	}
	drained := make(chan error, 1)
	go func() { drained <- lock.Drain(t.Context()) }()
	must(t, joined.Close())
	must(t, <-drained)

	type result struct {
		lock *Lock
		err  error
	}
	got := make(chan result, 1)
	go func() {
		l, _, err := Acquire(t.Context(), dir)
		got <- result{l, err}
	}()
	must(t, lock.Close())
	r := <-got
	must(t, r.err)
	if r.lock == nil {
		t.Fatal("joined a holder that had ended")
	}
	must(t, r.lock.Close())
}
