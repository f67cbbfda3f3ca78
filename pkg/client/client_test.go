package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

// rig is a client on a server without a scheduler; a test answers itself.
type rig struct {
	*client.Client
	nc  *nats.Conn
	log events.Log
}

func newRig(t *testing.T) *rig {
	t.Helper()
	js := eventstest.Server(t)
	subjects, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Declare(t.Context(), js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(js.Conn(), "")
	if err != nil {
		t.Fatal(err)
	}
	return &rig{Client: c, nc: js.Conn(), log: events.NewLog(js, subjects)}
}

// answer replies to requests on a subject with the messages that reply makes of the body.
func (r *rig) answer(t *testing.T, subject string, reply func(body []byte) []*nats.Msg) {
	t.Helper()
	sub, err := r.nc.Subscribe(subject, func(m *nats.Msg) {
		for _, part := range reply(m.Data) {
			if err := m.RespondMsg(part); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.Unsubscribe() })
}

func TestClient_NoScheduler(t *testing.T) {
	r := newRig(t)
	if _, err := r.Plan(t.Context(), events.NewID()); !errors.Is(err, client.ErrNoScheduler) {
		t.Errorf("error %v, want %v", err, client.ErrNoScheduler)
	}
}

func TestClient_ErrorHasTheCode(t *testing.T) {
	r := newRig(t)
	r.answer(t, "fleet.api.plan.approve", func([]byte) []*nats.Msg {
		m := &nats.Msg{Header: nats.Header{}}
		m.Header.Set(micro.ErrorCodeHeader, api.CodeConflict)
		m.Header.Set(micro.ErrorHeader, "plan is applied")
		return []*nats.Msg{m}
	})
	_, err := r.Approve(t.Context(), events.NewID(), "me")
	var got *client.Error
	if !errors.As(err, &got) || got.Code != api.CodeConflict || got.Message != "plan is applied" {
		t.Errorf("error %v, want code %s with its message", err, api.CodeConflict)
	}
}

func TestClient_RequestAndReplyInParts(t *testing.T) {
	r := newRig(t)
	want := []events.Worker{{Name: "w1", Slots: 2, Pools: map[string]string{"default": ""}}, {Name: "w2"}}
	whole, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	r.answer(t, "fleet.api.worker.list", func(body []byte) []*nats.Msg {
		if len(body) > 0 {
			t.Errorf("request %q, want none", body)
		}
		parts := slices.Collect(slices.Chunk(whole, 10))
		var msgs []*nats.Msg
		for _, p := range parts {
			msgs = append(msgs, &nats.Msg{Data: p, Header: nats.Header{api.HeaderParts: {strconv.Itoa(len(parts))}}})
		}
		return msgs
	})
	got, err := r.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("workers (-want +got):\n%s", d)
	}
}

func TestClient_NotJSONAndTooLarge(t *testing.T) {
	r := newRig(t)
	r.answer(t, "fleet.api.plan.diff", func([]byte) []*nats.Msg { return []*nats.Msg{{Data: []byte("<html>")}} })
	if _, err := r.Diff(t.Context(), events.NewID()); err == nil {
		t.Error("a reply that is no JSON is taken for a difference")
	}
	large := events.NewSubmission(json.RawMessage(`"`+strings.Repeat("x", 2<<20)+`"`), "svc")
	if _, err := r.Submit(t.Context(), large); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("error %v, want %v", err, events.ErrTooLarge)
	}
}

// A request ends with its context when nobody answers it.
func TestClient_SilentScheduler(t *testing.T) {
	r := newRig(t)
	r.answer(t, "fleet.api.plan.get", func([]byte) []*nats.Msg { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Plan(ctx, events.NewID()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestClient_Wait(t *testing.T) {
	r := newRig(t)
	w, err := events.OpenWriter(t.Context(), r.log, events.NewID(), "/test")
	if err != nil {
		t.Fatal(err)
	}
	write := func(typ string, d events.Data) {
		t.Helper()
		if err := w.Append(t.Context(), typ, d); err != nil {
			t.Fatal(err)
		}
	}
	write(events.TypeAccepted, events.Data{Plan: &events.Fold{Apply: events.ApplyManual}})
	write(events.TypeWaiting, events.Data{Reason: "no worker"})
	waiting := func(rec events.Record) bool { return rec.Event.Kind() == events.TypeWaiting }
	if rec, err := r.Wait(t.Context(), w.PlanID(), waiting); err != nil || rec.Event.Kind() != events.TypeWaiting {
		t.Errorf("%s, %v, want waiting", rec.Event.Kind(), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if rec, err := r.Wait(ctx, w.PlanID(), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s, %v before the end, want %v", rec.Event.Kind(), err, context.DeadlineExceeded)
	}
	write(events.TypeCancelled, events.Data{By: "me"})
	if rec, err := r.Wait(t.Context(), w.PlanID(), nil); err != nil || !rec.Event.Data.Final {
		t.Errorf("%s, %v, want the last event", rec.Event.Kind(), err)
	}
	records, err := r.Events(t.Context(), w.PlanID())
	if err != nil || len(records) != 3 {
		t.Errorf("%d events, %v, want 3", len(records), err)
	}
}
