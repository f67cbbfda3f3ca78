package events_test

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

// fleet starts a server with the streams of a fleet.
func fleet(t *testing.T, change ...func(*server.Options)) (jetstream.JetStream, events.Subjects) {
	t.Helper()
	js := eventstest.Server(t, change...)
	if err := events.Declare(t.Context(), js, events.Options{AckWait: eventstest.AckWait}); err != nil {
		t.Fatal(err)
	}
	return js, subjects(t)
}

func subjects(t *testing.T) events.Subjects {
	t.Helper()
	s, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestJetStreamLog(t *testing.T) {
	eventstest.RunLog(t, func(t *testing.T) events.Log {
		js, s := fleet(t)
		return events.NewLog(js, s)
	})
}

func TestMemoryLog(t *testing.T) {
	eventstest.RunLog(t, func(t *testing.T) events.Log { return events.NewMemoryLog(subjects(t)) })
}

func TestJetStreamQueue(t *testing.T) {
	eventstest.RunQueue(t, func(t *testing.T) (eventstest.FullQueue, events.DeadLetters) {
		js, s := fleet(t)
		return events.NewQueue(js, s, events.QueueOptions{AckWait: eventstest.AckWait}), events.NewDeadLetters(js, s)
	})
}

func TestMemoryQueue(t *testing.T) {
	eventstest.RunQueue(t, func(t *testing.T) (eventstest.FullQueue, events.DeadLetters) {
		var dead events.MemoryDeadLetters
		return events.NewMemoryQueue(subjects(t), events.QueueOptions{AckWait: eventstest.AckWait}, &dead), &dead
	})
}

func TestJetStreamSubmissions(t *testing.T) {
	eventstest.RunSubmissions(t, func(t *testing.T) (events.Submissions, events.DeadLetters) {
		js, s := fleet(t)
		return events.NewSubmissions(js, s), events.NewDeadLetters(js, s)
	})
}

func TestMemorySubmissions(t *testing.T) {
	eventstest.RunSubmissions(t, func(t *testing.T) (events.Submissions, events.DeadLetters) {
		var dead events.MemoryDeadLetters
		return events.NewMemorySubmissions(subjects(t), events.QueueOptions{AckWait: eventstest.AckWait}, &dead), &dead
	})
}
