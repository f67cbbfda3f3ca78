package eventstest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// AckWait is what the queues under test have to be made with.
const AckWait = 600 * time.Millisecond

// FullQueue is what the suite of queues needs.
type FullQueue = events.FullQueue

// RunQueue is the conformance suite of events.Queue and events.PoolQueues. Each call of open returns an empty queue with
// AckWait, and the dead letters it sets aside to.
func RunQueue(t *testing.T, open func(t *testing.T) (FullQueue, events.DeadLetters)) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, FullQueue, events.DeadLetters)
	}{
		{"PublishPullAck", queueRound},
		{"OneOfAVerbForAPlan", queueUnique},
		{"RedeliveredAfterAckWait", queueRedelivered},
		{"InProgressKeepsIt", queueInProgress},
		{"NakWithDelay", queueNak},
		{"TermSetsAside", queueTerm},
		{"PullTakesWhatLiesReady", queueMany},
		{"PullWaitsForTheFirst", queueWaits},
		{"PoolsAreApart", queuePools},
		{"NoPool", queueNoPool},
		{"Remove", queueRemove},
		{"RemovePool", queueRemovePool},
		{"EachOnce", queueEachOnce},
		{"RefusesBadNames", queueBadNames},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			q, dead := open(t)
			if err := q.EnsurePool(t.Context(), "default"); err != nil {
				t.Fatal(err)
			}
			test.run(t, q, dead)
		})
	}
}

func publish(t *testing.T, q events.Queue, pool string) events.Command {
	t.Helper()
	c := events.NewCommand(pool, events.VerbRun, events.NewID())
	if err := q.Publish(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

func pull(t *testing.T, q events.Queue, p events.Pull) []events.Delivery {
	t.Helper()
	if p.Pool == "" {
		p.Pool = "default"
	}
	p.Max = max(p.Max, 1)
	got, err := q.Pull(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// one pulls exactly one command.
func one(t *testing.T, q events.Queue, wait time.Duration) events.Delivery {
	t.Helper()
	got := pull(t, q, events.Pull{Wait: wait})
	if len(got) != 1 {
		t.Fatalf("pulled %d commands, want 1", len(got))
	}
	return got[0]
}

func none(t *testing.T, q events.Queue, wait time.Duration) {
	t.Helper()
	if got := pull(t, q, events.Pull{Wait: wait}); len(got) != 0 {
		t.Errorf("pulled %d commands, want none", len(got))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func queueRound(t *testing.T, q FullQueue, _ events.DeadLetters) {
	want := events.NewCommand("default", events.VerbApply, events.NewID())
	want.Class, want.Epoch, want.RequestedBy = events.ClassHigh, 3, "a <b>"
	want.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	must(t, q.Publish(t.Context(), want))
	d := one(t, q, patience)
	got, err := d.Command()
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if d.Redelivered() != 0 {
		t.Errorf("redelivered %d times at first", d.Redelivered())
	}
	depth, err := q.Depth(t.Context(), "default")
	must(t, err)
	if depth.Queued != 0 || depth.Held != 1 {
		t.Errorf("depth %+v, want one held", depth)
	}
	must(t, d.Ack(t.Context()))
	must(t, d.Ack(t.Context()))
	none(t, q, AckWait+AckWait/2)
}

func queueUnique(t *testing.T, q FullQueue, _ events.DeadLetters) {
	c := publish(t, q, "default")
	isQueued := func() {
		t.Helper()
		if err := q.Publish(t.Context(), c); !errors.Is(err, events.ErrQueued) {
			t.Errorf("second publish: %v, want %v", err, events.ErrQueued)
		}
	}
	isQueued()
	d := one(t, q, patience)
	isQueued()
	must(t, d.Ack(t.Context()))
	must(t, q.Publish(t.Context(), c))
	must(t, one(t, q, patience).Ack(t.Context()))
}

func queueRedelivered(t *testing.T, q FullQueue, _ events.DeadLetters) {
	publish(t, q, "default")
	one(t, q, patience)
	start := time.Now()
	d := one(t, q, patience)
	if took := time.Since(start); took < AckWait/2 {
		t.Errorf("delivered again after %v, AckWait is %v", took, AckWait)
	}
	if d.Redelivered() != 1 {
		t.Errorf("redelivered %d, want 1", d.Redelivered())
	}
	must(t, d.Ack(t.Context()))
}

func queueInProgress(t *testing.T, q FullQueue, _ events.DeadLetters) {
	publish(t, q, "default")
	d := one(t, q, patience)
	for end := time.Now().Add(2 * AckWait); time.Now().Before(end); {
		must(t, d.InProgress(t.Context()))
		none(t, q, AckWait/4)
	}
	must(t, d.Ack(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.InProgress(ctx); err == nil {
		t.Error("in progress without an answer is no error")
	}
}

func queueNak(t *testing.T, q FullQueue, _ events.DeadLetters) {
	publish(t, q, "default")
	must(t, one(t, q, patience).Nak(t.Context(), 0))
	d := one(t, q, AckWait/2)
	must(t, d.Nak(t.Context(), AckWait/2))
	start := time.Now()
	d = one(t, q, patience)
	if took := time.Since(start); took < AckWait/4 {
		t.Errorf("delivered again after %v, asked for %v", took, AckWait/2)
	}
	if d.Redelivered() != 2 {
		t.Errorf("redelivered %d, want 2", d.Redelivered())
	}
	must(t, d.Ack(t.Context()))
}

func queueTerm(t *testing.T, q FullQueue, dead events.DeadLetters) {
	c := publish(t, q, "default")
	must(t, one(t, q, patience).Term(t.Context(), "schema:\nno plan"))
	letters, err := dead.List(t.Context())
	must(t, err)
	if len(letters) != 1 {
		t.Fatalf("%d dead letters, want 1", len(letters))
	}
	l := letters[0]
	if l.Subject != "fleet.cmd.default.run."+c.PlanID || l.Reason != "schema: no plan" || !strings.Contains(string(l.Body), c.PlanID) || l.Time.IsZero() {
		t.Errorf("dead letter %+v with body %s", l, l.Body)
	}
	none(t, q, AckWait+AckWait/2)
	must(t, dead.Delete(t.Context(), l.Seq))
	must(t, dead.Delete(t.Context(), l.Seq))
	if letters, err = dead.List(t.Context()); err != nil || len(letters) != 0 {
		t.Errorf("%d dead letters, %v; want none", len(letters), err)
	}
}

func queueMany(t *testing.T, q FullQueue, _ events.DeadLetters) {
	for range 5 {
		publish(t, q, "default")
	}
	start := time.Now()
	for left := 5; left > 0; { // a server under load may hand out fewer than lie ready
		got := len(pull(t, q, events.Pull{Max: 3, Wait: patience}))
		if got < 1 || got > min(3, left) {
			t.Fatalf("pulled %d of %d with a maximum of 3", got, left)
		}
		left -= got
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("pulling what lies ready took %v", took)
	}
}

func queueWaits(t *testing.T, q FullQueue, _ events.DeadLetters) {
	got := make(chan int)
	go func() {
		d, err := q.Pull(t.Context(), events.Pull{Pool: "default", Max: 4, Wait: patience})
		if err != nil {
			t.Error(err)
		}
		got <- len(d)
	}()
	for {
		d, err := q.Depth(t.Context(), "default")
		must(t, err)
		if d.Waiting > 0 {
			break
		}
	}
	publish(t, q, "default")
	select {
	case n := <-got:
		if n != 1 {
			t.Errorf("pulled %d, want 1", n)
		}
	case <-time.After(patience / 2):
		t.Error("the pull did not return with the first command")
	}
}

func queuePools(t *testing.T, q FullQueue, _ events.DeadLetters) {
	long := "h-0123456789abcdef0123456789abcdef-01234567"
	for range 2 {
		must(t, q.EnsurePool(t.Context(), long))
	}
	c := publish(t, q, long)
	none(t, q, AckWait/4)
	got := pull(t, q, events.Pull{Pool: long, Wait: patience, Priority: 9})
	if len(got) != 1 {
		t.Fatalf("pulled %d, want 1", len(got))
	}
	if cmd, err := got[0].Command(); err != nil || cmd.PlanID != c.PlanID {
		t.Errorf("pulled %+v, %v", cmd, err)
	}
}

func queueNoPool(t *testing.T, q FullQueue, _ events.DeadLetters) {
	if has, err := q.HasPool(t.Context(), "nope"); err != nil || has {
		t.Errorf("has pool: %v, %v", has, err)
	}
	if has, err := q.HasPool(t.Context(), "default"); err != nil || !has {
		t.Errorf("has pool: %v, %v", has, err)
	}
	if _, err := q.Pull(t.Context(), events.Pull{Pool: "nope", Max: 1, Wait: time.Millisecond}); !errors.Is(err, events.ErrNoPool) {
		t.Errorf("pull: %v, want %v", err, events.ErrNoPool)
	}
	if _, err := q.Depth(t.Context(), "nope"); !errors.Is(err, events.ErrNoPool) {
		t.Errorf("depth: %v, want %v", err, events.ErrNoPool)
	}
}

func queueRemove(t *testing.T, q FullQueue, _ events.DeadLetters) {
	c := publish(t, q, "default")
	has := func(want bool) {
		t.Helper()
		if got, err := q.Has(t.Context(), c); got != want || err != nil {
			t.Errorf("Has: %v, %v, want %v", got, err, want)
		}
	}
	has(true)
	must(t, q.Remove(t.Context(), c))
	must(t, q.Remove(t.Context(), c))
	has(false)
	none(t, q, AckWait/4)
	must(t, q.Publish(t.Context(), c))
	d := one(t, q, patience)
	has(true) // held
	must(t, q.Remove(t.Context(), c))
	must(t, d.Ack(t.Context()))
	none(t, q, AckWait+AckWait/2)
}

func queueRemovePool(t *testing.T, q FullQueue, _ events.DeadLetters) {
	publish(t, q, "default")
	refused := func(why string) {
		t.Helper()
		if err := q.RemovePool(t.Context(), "default"); !errors.Is(err, events.ErrNotDrained) {
			t.Errorf("remove a pool with a command %s: %v, want %v", why, err, events.ErrNotDrained)
		}
	}
	refused("queued")
	d := one(t, q, patience)
	refused("held")
	must(t, d.Ack(t.Context()))
	must(t, q.RemovePool(t.Context(), "default"))
	must(t, q.RemovePool(t.Context(), "default"))
	if _, err := q.Pull(t.Context(), events.Pull{Pool: "default", Max: 1, Wait: time.Millisecond}); !errors.Is(err, events.ErrNoPool) {
		t.Errorf("pull: %v, want %v", err, events.ErrNoPool)
	}
}

func queueEachOnce(t *testing.T, q FullQueue, _ events.DeadLetters) {
	const commands, workers = 60, 4
	want := map[string]int{}
	for range commands {
		want[publish(t, q, "default").PlanID] = 1
	}
	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				ds, err := q.Pull(t.Context(), events.Pull{Pool: "default", Max: 3, Wait: AckWait / 4})
				if err != nil || len(ds) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				for _, d := range ds {
					c, err := d.Command()
					if err == nil {
						err = d.Ack(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					got[c.PlanID]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deliveries (-want +got):\n%s", diff)
	}
}

func queueBadNames(t *testing.T, q FullQueue, _ events.DeadLetters) {
	id := events.NewID()
	for _, c := range []events.Command{
		events.NewCommand("a.b", events.VerbRun, id),
		events.NewCommand("*", events.VerbRun, id),
		events.NewCommand("default", "x.y", id),
		events.NewCommand("default", events.VerbRun, strings.ToLower(id)),
		events.NewCommand("default", events.VerbRun, ">"),
	} {
		if err := q.Publish(t.Context(), c); err == nil {
			t.Errorf("command %+v was published", c)
		}
	}
	if err := q.EnsurePool(t.Context(), "A>"); err == nil {
		t.Error("a pool with a bad name was made")
	}
}
