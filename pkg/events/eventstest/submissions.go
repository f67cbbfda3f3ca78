package eventstest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// RunSubmissions is the conformance suite of events.Submissions. Each call of open returns an empty one with AckWait, and the
// dead letters it sets aside to.
func RunSubmissions(t *testing.T, open func(t *testing.T) (events.Submissions, events.DeadLetters)) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, events.Submissions, events.DeadLetters)
	}{
		{"Round", submissionsRound},
		{"SameIDArrivesAgain", submissionsAgain},
		{"RedeliveredAfterAckWait", submissionsRedelivered},
		{"TooLarge", submissionsTooLarge},
		{"BadID", submissionsBadID},
		{"TermSetsAside", submissionsTerm},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			q, dead := open(t)
			test.run(t, q, dead)
		})
	}
}

func oneSubmission(t *testing.T, q events.Submissions, wait time.Duration) events.SubmissionDelivery {
	t.Helper()
	got, err := q.Pull(t.Context(), 1, wait)
	must(t, err)
	if len(got) != 1 {
		t.Fatalf("pulled %d submissions, want 1", len(got))
	}
	return got[0]
}

func submissionsRound(t *testing.T, q events.Submissions, _ events.DeadLetters) {
	id := events.NewID()
	want := events.NewSubmission(json.RawMessage(`{"version":1,"steps":[{"run":"true"}]}`), "svc")
	want.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	must(t, q.Publish(t.Context(), id, want))
	d := oneSubmission(t, q, patience)
	if got, err := d.PlanID(); err != nil || got != id {
		t.Errorf("plan id %q, %v; want %q", got, err, id)
	}
	got, err := d.Submission()
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("submission (-want +got):\n%s", diff)
	}
	must(t, d.Ack(t.Context()))
	if got, err := q.Pull(t.Context(), 1, AckWait+AckWait/2); err != nil || len(got) != 0 {
		t.Errorf("pulled %d more, %v", len(got), err)
	}
}

func submissionsAgain(t *testing.T, q events.Submissions, _ events.DeadLetters) {
	id := events.NewID()
	for _, body := range []string{`{"name":"a"}`, `{"name":"a"}`, `{"name":"b"}`} {
		must(t, q.Publish(t.Context(), id, events.NewSubmission(json.RawMessage(body), "")))
	}
	for range 3 {
		must(t, oneSubmission(t, q, patience).Ack(t.Context()))
	}
}

func submissionsRedelivered(t *testing.T, q events.Submissions, _ events.DeadLetters) {
	must(t, q.Publish(t.Context(), events.NewID(), events.NewSubmission(json.RawMessage(`{}`), "")))
	oneSubmission(t, q, patience)
	d := oneSubmission(t, q, patience)
	must(t, d.InProgress(t.Context()))
	must(t, d.Ack(t.Context()))
}

func submissionsTooLarge(t *testing.T, q events.Submissions, _ events.DeadLetters) {
	body, _ := json.Marshal(strings.Repeat("x", events.MaxBody))
	err := q.Publish(t.Context(), events.NewID(), events.NewSubmission(body, ""))
	var size *events.SizeError
	if !errors.As(err, &size) || size.Size != len(body) || size.Max != events.MaxBody {
		t.Errorf("got %v, want a SizeError with both numbers", err)
	}
}

func submissionsBadID(t *testing.T, q events.Submissions, _ events.DeadLetters) {
	for _, id := range []string{"", ">", "a.b", strings.ToLower(events.NewID()), events.NewID() + "X"} {
		if err := q.Publish(t.Context(), id, events.NewSubmission(json.RawMessage(`{}`), "")); !errors.Is(err, events.ErrID) {
			t.Errorf("publish as %q: %v, want %v", id, err, events.ErrID)
		}
	}
}

func submissionsTerm(t *testing.T, q events.Submissions, dead events.DeadLetters) {
	id := events.NewID()
	must(t, q.Publish(t.Context(), id, events.NewSubmission(json.RawMessage(`{}`), "")))
	must(t, oneSubmission(t, q, patience).Term(t.Context(), "bad"))
	letters, err := dead.List(t.Context())
	must(t, err)
	if len(letters) != 1 || letters[0].Subject != "fleet.submit."+id || letters[0].Reason != "bad" {
		t.Errorf("dead letters %+v", letters)
	}
}
