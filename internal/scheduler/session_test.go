package scheduler

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// A start that nobody took, or whose worker died, ends after a minute; a session that its worker has, or had, stays.
func TestScheduler_SweepSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subjects, err := events.NewSubjects("")
		if err != nil {
			t.Fatal(err)
		}
		log := events.NewMemoryLog(subjects)
		s := New(Fleet{Sessions: kv.NewMemory(), Log: log}, time.Second, zerolog.Nop())
		told, err := log.Follow(t.Context(), events.Filter{Noun: events.NounSession})
		if err != nil {
			t.Fatal(err)
		}
		s.index.worker("alive", &events.Worker{Name: "alive", State: events.WorkerReady})
		for what, c := range map[string]struct {
			rec  events.Session
			want string
		}{
			"untaken":             {events.Session{State: events.SessionStarting}, events.SessionFailed},
			"its worker died":     {events.Session{State: events.SessionStarting, Worker: "dead"}, events.SessionFailed},
			"being started":       {events.Session{State: events.SessionStarting, Worker: "alive"}, events.SessionStarting},
			"used":                {events.Session{State: events.SessionActive, Worker: "alive"}, events.SessionActive},
			"lost, to be resumed": {events.Session{State: events.SessionActive, Worker: "dead"}, events.SessionActive},
		} {
			id := events.NewID()
			c.rec.ID = id
			b, err := json.Marshal(c.rec)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.fleet.Sessions.Create(t.Context(), id, b); err != nil {
				t.Fatal(err)
			}
			for _, age := range []time.Duration{untakenLimit - time.Second, 2 * time.Second} {
				time.Sleep(age) // of a bubble
				e, err := s.fleet.Sessions.Get(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				var now events.Session
				if err := json.Unmarshal(e.Value, &now); err != nil {
					t.Fatal(err)
				}
				if now.State != c.rec.State {
					t.Errorf("%s: got %s before a minute was over", what, now.State)
				}
				if err := s.sweepSession(t.Context(), e, now); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			got, err := s.sessionRecord(t.Context(), id)
			if err != nil || got.State != c.want || (got.Code == "no_worker") != (c.want == events.SessionFailed) {
				t.Errorf("%s: got %s, code %q, %v; want %s", what, got.State, got.Code, err, c.want)
			}
			synctest.Wait()
			select {
			case r := <-told:
				if c.want != events.SessionFailed || r.Event.Subject != id || r.Event.Kind() != events.SessionFailed || r.Event.Data.Code != "no_worker" {
					t.Errorf("%s: told %+v, want its failure", what, r.Event)
				}
			default:
				if c.want == events.SessionFailed {
					t.Errorf("%s: nobody was told", what)
				}
			}
		}
	})
}

// A session of a worker that was killed is lost, and can be resumed, also when the next one has its name already.
func TestScheduler_SessionOfAnEarlierWorkerOfTheSameName(t *testing.T) {
	s := New(Fleet{Sessions: kv.NewMemory()}, time.Second, zerolog.Nop())
	first, next := time.Now().UTC(), time.Now().Add(time.Second).UTC()
	id, cp := events.NewID(), events.NewID()
	b, err := json.Marshal(events.Session{ID: id, State: events.SessionActive, Worker: "w", WorkerStarted: first, Checkpoint: cp})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.fleet.Sessions.Create(t.Context(), id, b); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, state string
		resumes     bool
		started     time.Time
	}{
		{"Itself", events.SessionActive, false, first},
		{"Next", events.SessionLost, true, next},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.index.worker("w", &events.Worker{Name: "w", State: events.WorkerReady, Started: tc.started})
			got, err := s.sessionGet(t.Context(), []byte(`{"id":"`+id+`"}`))
			if err != nil || got.(api.Session).State != tc.state {
				t.Errorf("got %+v, %v, want it %s", got, err, tc.state)
			}
			req := api.SessionStart{ID: events.NewID(), Session: id}
			err = s.completeStart(t.Context(), &req)
			if tc.resumes && (err != nil || req.Checkpoint != cp) || !tc.resumes && errorCode(err) != api.CodeConflict {
				t.Errorf("resume: got %v from %q, want it to be from %s: %t", err, req.Checkpoint, cp, tc.resumes)
			}
		})
	}
}
