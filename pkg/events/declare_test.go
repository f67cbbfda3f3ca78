package events_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

func TestDeclare_Idempotent(t *testing.T) {
	js := eventstest.Server(t)
	s, _ := events.NewSubjects("")
	ctx := t.Context()
	if err := events.Declare(ctx, js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	if changed, err := events.Redeclare(ctx, js, s); err != nil || len(changed) > 0 {
		t.Errorf("declared again: changed %q, %v; want no change", changed, err)
	}
	if err := events.Declare(ctx, js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	// The client's own calls see buckets.
	for _, b := range []string{"FLEET_LEASES", "FLEET_WORKERS", "FLEET_POOLS", "FLEET_IMAGES", "FLEET_CHECKPOINTS", "FLEET_PLANS"} {
		kv, err := js.KeyValue(ctx, b)
		if err != nil {
			t.Fatalf("bucket %s: %v", b, err)
		}
		if _, err := kv.Put(ctx, "k", []byte("v")); err != nil {
			t.Errorf("put into %s: %v", b, err)
		}
	}
	if _, err := js.ObjectStore(ctx, "FLEET_LAYERS"); err != nil {
		t.Error(err)
	}
}

func TestDeclare_KeepsUnknownSettingsAndUpdates(t *testing.T) {
	js := eventstest.Server(t)
	ctx := t.Context()
	if err := events.Declare(ctx, js, events.Options{Prefix: "acme"}); err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(ctx, "ACME_OUTPUT")
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	c.MaxAge = time.Hour
	c.Description = "somebody's note"
	if _, err := js.UpdateStream(ctx, c); err != nil {
		t.Fatal(err)
	}
	if err := events.Declare(ctx, js, events.Options{Prefix: "acme", AckWait: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	info, err := st.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Config.MaxAge, 30*24*time.Hour; got != want {
		t.Errorf("max age %v, want %v", got, want)
	}
	if got, want := info.Config.Description, "somebody's note"; got != want {
		t.Errorf("description %q, want %q", got, want)
	}
	con, err := js.Consumer(ctx, "ACME_SUBMISSIONS", "scheduler")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := con.CachedInfo().Config.AckWait, 2*time.Second; got != want {
		t.Errorf("ack wait %v, want %v", got, want)
	}
}

func TestDeclare_SaysWhatCannotChange(t *testing.T) {
	js := eventstest.Server(t)
	ctx := t.Context()
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "FLEET_COMMANDS", Subjects: []string{"fleet.cmd.*.*.*"}})
	if err != nil {
		t.Fatal(err)
	}
	err = events.Declare(ctx, js, events.Options{})
	if err == nil {
		t.Fatal("no error for a stream with another retention")
	}
	for _, want := range []string{"FLEET_COMMANDS", "Retention from Limits to WorkQueue"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
}

func TestDeclare_SmallServer(t *testing.T) {
	small := func(o *server.Options) { o.JetStreamMaxStore = 300 << 20; o.JetStreamMaxMemory = 64 << 20 }
	t.Run("DefaultsShrink", func(t *testing.T) {
		js := eventstest.Server(t, small)
		for range 2 {
			if err := events.Declare(t.Context(), js, events.Options{}); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("AskedForSizeIsKeptOrRefused", func(t *testing.T) {
		js := eventstest.Server(t, small)
		err := events.Declare(t.Context(), js, events.Options{Limits: events.Limits{Output: 1 << 40}})
		if err == nil || !strings.Contains(err.Error(), "FLEET_OUTPUT") || !strings.Contains(err.Error(), "1099511627776 bytes") {
			t.Errorf("got %v, want an error with the stream and its size", err)
		}
	})
}

func TestDeclare_Prefix(t *testing.T) {
	for _, bad := range []string{"Fleet", "a.b", "*", ">", "a b", strings.Repeat("x", 40)} {
		if err := events.Declare(context.Background(), nil, events.Options{Prefix: bad}); err == nil {
			t.Errorf("prefix %q was taken", bad)
		}
	}
}

func TestEventsStream_RefusesRewriting(t *testing.T) {
	js := eventstest.Server(t)
	ctx := t.Context()
	if err := events.Declare(ctx, js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	s, _ := events.NewSubjects("")
	log := events.NewLog(js, s)
	ev := events.NewEvent(events.TypeOf(events.NounWorker, "ready"), "w1", "/worker/w1", events.Data{})
	if err := log.Publish(ctx, ev); err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(ctx, s.EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.DeleteMsg(ctx, 1); err == nil {
		t.Error("an event was deleted")
	}
	if err := st.Purge(ctx); err == nil {
		t.Error("the log was purged")
	}
	if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: s.Event(events.NounWorker, "w1", "x"), Header: nats.Header{"Nats-Rollup": {"all"}}}); err == nil {
		t.Error("a rollup header was taken")
	}
	if err := log.Publish(ctx, events.NewEvent(events.TypeOf(events.NounPlan, events.TypeClaimed), events.NewID(), "/x", events.Data{})); err == nil {
		t.Error("a plan's event was stored without a fence")
	}
	if _, err := log.Last(ctx, events.NewID()); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("last of an unknown plan: %v, want %v", err, events.ErrNotFound)
	}
}
