package scheduler

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// desk is a scheduler on the in-memory fleet, without its API.
type desk struct {
	*Scheduler
	submissions *events.MemorySubmissions
	dead        *events.MemoryDeadLetters
}

// open starts intake, the leader and the read model; they end with the test.
func open(t *testing.T) *desk {
	t.Helper()
	subjects, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{dead: &events.MemoryDeadLetters{}}
	opts := events.QueueOptions{AckWait: time.Second}
	d.submissions = events.NewMemorySubmissions(subjects, opts, d.dead)
	d.Scheduler = New(Fleet{
		Subjects: subjects, Log: events.NewMemoryLog(subjects), Queue: events.NewMemoryQueue(subjects, opts, d.dead), Submissions: d.submissions,
		Workers: kv.NewMemory(), Leases: kv.NewMemory(), Plans: kv.NewMemory(), Checkpoints: kv.NewMemory(), Pools: kv.NewMemory(), Images: kv.NewMemory(), Sessions: kv.NewMemory(), Store: objectstore.NewMemory(),
	}, 20*time.Millisecond, zerolog.Nop())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		noAPI := func(context.Context) (func(), error) { return func() {}, nil }
		if err := d.run(ctx, noAPI); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return d
}

func body(name string) json.RawMessage {
	return json.RawMessage(`{"version":1,"name":"` + name + `","resource":{"path":"/srv","host":"h1"},"steps":[{"run":"true"}],"apply":"never"}`)
}

// submit publishes a submission and returns the plan's state once it has one.
func (d *desk) submit(t *testing.T, id string, plan json.RawMessage) events.Fold {
	t.Helper()
	if err := d.submissions.Publish(t.Context(), id, events.NewSubmission(plan, "svc")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	f, ok := d.index.await(ctx, id)
	if !ok {
		t.Fatal("no verdict")
	}
	return f
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if holds() {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func (d *desk) state(id string) string {
	f, _ := d.index.get(id)
	return f.State
}

func TestScheduler_IntakeAccepts(t *testing.T) {
	d := open(t)
	id := events.NewID()
	f := d.submit(t, id, body("one"))
	if f.Name != "one" || f.Resource.Path != "/srv" || f.Strategy != "copy_on_write" || f.MaxAttempts != 3 || f.BodyDigest == "" {
		t.Errorf("accepted as %+v", f)
	}
	eventually(t, "the plan waits for a worker of its host", func() bool { return d.state(id) == events.StateWaiting })
	last, err := d.fleet.Log.Last(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := last.Event.Data.Reason, "no live worker of host h1"; got != want {
		t.Errorf("waiting for %q, want %q", got, want)
	}
}

func TestScheduler_IntakeIsIdempotent(t *testing.T) {
	d := open(t)
	id := events.NewID()
	d.submit(t, id, body("one"))
	spaced := json.RawMessage(strings.ReplaceAll(string(body("one")), ",", ", "))
	for _, again := range []json.RawMessage{body("one"), spaced, body("other")} {
		if err := d.submissions.Publish(t.Context(), id, events.NewSubmission(again, "svc")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the other body is set aside", func() bool {
		letters, err := d.dead.List(t.Context())
		return err == nil && len(letters) == 1
	})
	records, err := d.fleet.Log.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for _, r := range records {
		if r.Event.Kind() == events.TypeAccepted {
			accepted++
		}
	}
	if accepted != 1 {
		t.Errorf("accepted %d times, want once", accepted)
	}
}

func TestScheduler_IntakeRejects(t *testing.T) {
	d := open(t)
	for _, tc := range []struct{ name, plan, code, says string }{
		{"UnknownKey", `{"version":1,"stepz":[],"steps":[{"run":"x"}]}`, "invalid_plan", "stepz"},
		{"NoHost", `{"version":1,"resource":{"path":"/srv"},"steps":[{"run":"x"}]}`, "invalid_plan", "host"},
		{"Unsupported", `{"version":1,"resource":{"path":"/srv","host":"h1"},"key":"k","steps":[{"run":"x"}]}`, "unsupported", "key"},
		{"NotAPlan", `[]`, "invalid_plan", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := d.submit(t, events.NewID(), json.RawMessage(tc.plan))
			if f.State != events.StateRejected || f.Code != tc.code || !strings.Contains(f.Error, tc.says) {
				t.Errorf("%s %s %q, want rejected with %s naming %q", f.State, f.Code, f.Error, tc.code, tc.says)
			}
		})
	}
}

// announce puts a worker's record where schedulers look.
func (d *desk) announce(t *testing.T, w events.Worker) {
	t.Helper()
	b, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.fleet.Workers.Put(t.Context(), w.Name, b); err != nil {
		t.Fatal(err)
	}
}

func TestScheduler_AdmitsWhenAWorkerComes(t *testing.T) {
	d := open(t)
	id := events.NewID()
	d.submit(t, id, body("one"))
	eventually(t, "the plan waits", func() bool { return d.state(id) == events.StateWaiting })
	w := pathWorker("w1", "h1", 1, "/srv")
	d.announce(t, w)
	got, err := d.pull(t, events.PoolToken("h1", "/srv"))
	if err != nil {
		t.Fatal(err)
	}
	if cmd, err := got.Command(); err != nil || cmd.PlanID != id || cmd.Verb != events.VerbRun {
		t.Errorf("command %+v, %v, want run of %s", cmd, err, id)
	}
}

func (d *desk) pull(t *testing.T, pool string) (events.Delivery, error) {
	t.Helper()
	var got []events.Delivery
	eventually(t, "a command comes", func() bool {
		var err error
		got, err = d.fleet.Queue.Pull(t.Context(), events.Pull{Pool: pool, Max: 1, Wait: 50 * time.Millisecond})
		return err == nil && len(got) > 0
	})
	return got[0], nil
}

func TestScheduler_RejectsAPathNobodyAllows(t *testing.T) {
	d := open(t)
	d.announce(t, pathWorker("w1", "h1", 1, "/home"))
	eventually(t, "the worker is known", func() bool { return len(d.index.workers()) == 1 })
	id := events.NewID()
	d.submit(t, id, body("one"))
	eventually(t, "the plan is rejected", func() bool { return d.state(id) == events.StateRejected })
	if f, _ := d.index.get(id); f.Code != "path_not_allowed" {
		t.Errorf("code %q, want path_not_allowed", f.Code)
	}
	eventually(t, "its record outlives the log", func() bool {
		f, err := readFold(t.Context(), d.fleet.Plans, id)
		return err == nil && f != nil && f.State == events.StateRejected
	})
}

func TestScheduler_ExpiresWhatNobodyHolds(t *testing.T) {
	d := open(t)
	id := events.NewID()
	d.submit(t, id, json.RawMessage(strings.Replace(string(body("one")), `"apply"`, `"expires_in":"1s","apply"`, 1)))
	eventually(t, "the plan expires", func() bool { return d.state(id) == events.StateExpired })
}
