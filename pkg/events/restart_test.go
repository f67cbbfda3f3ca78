package events_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

// serve starts a server on a port of the loopback interface; -1 picks one.
func serve(t *testing.T, dir string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS server is not ready")
	}
	return s
}

// TestJetStreamLog_ServerRestart goes on through a restart of the server: an append waits for it and is stored once, a follower
// misses and repeats nothing, a held command comes back.
func TestJetStreamLog_ServerRestart(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, dir, -1)
	nc, err := nats.Connect(first.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := events.Declare(ctx, js, events.Options{AckWait: eventstest.AckWait}); err != nil {
		t.Fatal(err)
	}
	s := subjects(t)
	log, queue := events.NewLog(js, s), events.NewQueue(js, s, events.QueueOptions{AckWait: eventstest.AckWait})
	id := acceptedPlan(t, log)
	w := open(t, log, id)
	followed, err := log.Follow(ctx, events.Filter{Plan: id})
	if err != nil {
		t.Fatal(err)
	}
	kinds := []string{(<-followed).Event.Kind()}
	if err := queue.EnsurePool(ctx, "default"); err != nil {
		t.Fatal(err)
	}
	if err := queue.Publish(ctx, events.NewCommand("default", events.VerbRun, id)); err != nil {
		t.Fatal(err)
	}
	if got, err := queue.Pull(ctx, events.Pull{Pool: "default", Max: 1, Wait: 5 * time.Second}); err != nil || len(got) != 1 {
		t.Fatalf("pulled %d, %v", len(got), err)
	}

	port := first.Addr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port()
	first.Shutdown()
	first.WaitForShutdown()
	claimed := make(chan error, 1)
	go func() { claimed <- w.Claim(ctx, events.Data{Worker: "w"}) }()
	serve(t, dir, int(port))
	if err := <-claimed; err != nil {
		t.Fatalf("claim over a restart: %v", err)
	}
	if err := w.Append(ctx, events.TypeFailed, events.Data{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		kinds = append(kinds, (<-followed).Event.Kind())
	}
	if diff := cmp.Diff([]string{"accepted", "claimed", "failed"}, kinds); diff != "" {
		t.Errorf("followed (-want +got):\n%s", diff)
	}
	if got := types(t, log, id); got != "accepted claimed failed" {
		t.Errorf("events %q", got)
	}
	for ctx.Err() == nil {
		got, err := queue.Pull(ctx, events.Pull{Pool: "default", Max: 1, Wait: time.Second})
		if err == nil && len(got) == 1 {
			if err := got[0].Ack(ctx); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("the held command did not come back")
}
