package fleets

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

var roles = []string{"scheduler", "worker", "publisher", "operator", "observer"}

// deployed is a server of deploy/nats.conf whose streams are declared.
type deployed struct{ url string }

// startDeployed changes only where the server listens and stores.
func startDeployed(t *testing.T) deployed {
	t.Helper()
	for _, role := range roles {
		t.Setenv("WARMFLEET_"+strings.ToUpper(role)+"_PASSWORD", "secretOf"+role)
	}
	o, err := server.ProcessConfigFile("../../deploy/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !o.SyncAlways || !o.JetStream {
		t.Errorf("SyncAlways %v, JetStream %v: want both", o.SyncAlways, o.JetStream)
	}
	o.Host, o.Port, o.HTTPPort, o.StoreDir, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, 0, t.TempDir(), true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("server is not ready")
	}
	d := deployed{s.ClientURL()}
	if err := events.Declare(t.Context(), d.as(t, "scheduler").js, events.Options{}); err != nil {
		t.Fatalf("scheduler declares: %v", err)
	}
	return d
}

// user is a connection of one role.
type user struct {
	*nats.Conn
	js jetstream.JetStream
}

func (d deployed) as(t *testing.T, role string) *user {
	t.Helper()
	nc, err := nats.Connect(d.url, nats.UserInfo(role, "secretOf"+role), nats.CustomInboxPrefix("_INBOX_"+role),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // LastError tells
	if err != nil {
		t.Fatalf("%s: %v", role, err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return &user{nc, js}
}

// mayPublish asks the server: a refusal arrives before the answer to the ping that follows.
func (u *user) mayPublish(t *testing.T, subject string) bool {
	t.Helper()
	if err := u.Publish(subject, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	return u.allowed(t, subject)
}

func (u *user) maySubscribe(t *testing.T, subject string) bool {
	t.Helper()
	sub, err := u.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	ok := u.allowed(t, subject)
	if ok {
		_ = sub.Unsubscribe() // a refused one is gone already
	}
	return ok
}

func (u *user) allowed(t *testing.T, subject string) bool {
	t.Helper()
	if err := u.FlushTimeout(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	err := u.LastError()
	return err == nil || !strings.Contains(err.Error(), `"`+subject+`"`)
}

func TestDeployedConf_Publish(t *testing.T) {
	d := startDeployed(t)
	tests := []struct {
		subject string
		may     string // roles
	}{
		{"fleet.submit.01J", "scheduler publisher operator"},
		{"fleet.submit.01J.x", "scheduler"},
		{"fleet.cmd.default.run.01J", "scheduler"},
		{"fleet.sched.01J", "scheduler"},
		{"fleet.due.run.01J", "scheduler"},
		{"fleet.evt.plan.01J.applied", "scheduler worker"},
		{"fleet.out.01J.0", "scheduler worker"},
		{"fleet.dlq.run.01J", "scheduler worker"},
		{"fleet.ctl.cancel.01J", "scheduler operator"},
		{"fleet.worker.w.drain", "scheduler operator"},
		{"fleet.session.01J.exec", "scheduler operator"},
		{"$KV.FLEET_SESSIONS.01J", "scheduler worker"},
		{"fleet.api.plan.submit", "scheduler publisher operator"},
		{"fleet.api.plan.get", "scheduler publisher operator observer"},
		{"fleet.api.plan.approve", "scheduler operator"},
		{"fleet.api.plan.cancel", "scheduler operator"},
		{"fleet.api.pool.apply", "scheduler operator"},
		{"fleet.api.pool.delete", "scheduler operator"},
		{"fleet.api.pool.get", "scheduler operator observer"},
		{"fleet.api.image.build", "scheduler operator"},
		{"fleet.api.image.list", "scheduler operator observer"},
		{"fleet.api.session.get", "scheduler operator observer"},
		{"fleet.api.session.start", "scheduler operator"},
		{"fleet.api.worker.list", "scheduler operator observer"},
		{"$KV.FLEET_LEASES.plan.01J", "scheduler worker"},
		{"$KV.FLEET_CHECKPOINTS.01J", "scheduler worker"},
		{"$KV.FLEET_PLANS.01J", "scheduler"},
		{"$KV.FLEET_POOLS.p", "scheduler"},
		{"$KV.FLEET_IMAGES.pool.p", "scheduler worker"},
		{"$KV.FLEET_SESSIONS.01J", "scheduler worker"},
		{"$JS.API.CONSUMER.CREATE.KV_FLEET_SESSIONS.x", "scheduler worker operator"},
		{"$O.FLEET_LAYERS.C.x", "scheduler worker"},
		{"$JS.API.STREAM.PURGE.FLEET_SUBMISSIONS", "scheduler"},
		{"$JS.API.STREAM.PURGE.FLEET_COMMANDS", "scheduler"},
		{"$JS.API.STREAM.PURGE.OBJ_FLEET_LAYERS", "scheduler worker"},
		{"$JS.API.STREAM.DELETE.FLEET_EVENTS", "scheduler"},
		{"$JS.API.STREAM.UPDATE.FLEET_EVENTS", "scheduler"},
		{"$JS.API.CONSUMER.CREATE.FLEET_COMMANDS.x", "scheduler"},
		{"$JS.API.CONSUMER.DELETE.FLEET_COMMANDS.default", "scheduler"},
		{"$JS.API.CONSUMER.CREATE.FLEET_DLQ.x", "scheduler operator"},
		{"$JS.API.CONSUMER.CREATE.FLEET_OUTPUT.x", "scheduler operator"},
		{"$JS.API.CONSUMER.CREATE.FLEET_EVENTS.x", "scheduler worker operator"},
		{"$JS.API.STREAM.INFO.FLEET_EVENTS", "scheduler worker publisher operator observer"},
		{"$JS.API.STREAM.LIST", "scheduler operator observer"},
		{"_INBOX_scheduler.x", ""},
		{"other.subject", ""},
	}
	for _, role := range roles {
		u := d.as(t, role)
		for _, tt := range tests {
			if strings.Contains(tt.subject, ".DELETE.") && role == "scheduler" {
				continue // it would be obeyed
			}
			want := strings.Contains(tt.may, role)
			if got := u.mayPublish(t, tt.subject); got != want {
				t.Errorf("%s publishes %s: got %v, want %v", role, tt.subject, got, want)
			}
		}
	}
}

func TestDeployedConf_Subscribe(t *testing.T) {
	d := startDeployed(t)
	for _, role := range roles {
		u := d.as(t, role)
		for _, other := range roles {
			if got, want := u.maySubscribe(t, "_INBOX_"+other+".>"), role == other; got != want {
				t.Errorf("%s subscribes to the inboxes of %s: got %v, want %v", role, other, got, want)
			}
		}
		if got, want := u.maySubscribe(t, "fleet.cmd.>"), role == "scheduler"; got != want {
			t.Errorf("%s subscribes to commands: got %v, want %v", role, got, want)
		}
		if u.maySubscribe(t, "_INBOX.>") {
			t.Errorf("%s subscribes to everybody's inboxes", role)
		}
	}
}

// A worker's user has all that the store of layers needs.
func TestDeployedConf_WorkerStoresLayers(t *testing.T) {
	d := startDeployed(t)
	w := d.as(t, "worker")
	s, err := objectstore.NewJetStream(w.js, objectstore.Options{Stall: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	data := objectstoretest.Bytes(1, 3<<20)
	objectstoretest.Put(t, s, "x", data)
	objectstoretest.Check(t, s, "x", data)
	if _, err := s.List(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = w.js.Publish(t.Context(), "$O.FLEET_LAYERS.C.orphan", data[:10])
	if err != nil {
		t.Error(err)
	}
	if n, err := s.Sweep(t.Context(), 0); n != 1 || err != nil {
		t.Errorf("Sweep: got %d, %v, want the orphan", n, err)
	}
	if err := s.Delete(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	if w.LastError() != nil {
		t.Errorf("forbidden on the way: %v", w.LastError())
	}
}

// A worker takes a command, keeps it, writes events and records, and acknowledges.
func TestDeployedConf_WorkerTakesCommands(t *testing.T) {
	d := startDeployed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	sch, w := d.as(t, "scheduler"), d.as(t, "worker")
	if _, err := sch.js.CreateConsumer(ctx, "FLEET_COMMANDS", jetstream.ConsumerConfig{
		Durable: "default", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "fleet.cmd.default.>",
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := sch.js.Publish(ctx, "fleet.cmd.default.run.01J", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	c, err := w.js.Consumer(ctx, "FLEET_COMMANDS", "default")
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := w.js.KeyValue(ctx, "FLEET_LEASES")
	if err != nil {
		t.Fatal(err)
	}
	_, created := leases.Create(ctx, "plan.01J", []byte("w"))
	_, appended := w.js.Publish(ctx, "fleet.evt.plan.01J.claimed", []byte("{}"),
		jetstream.WithExpectLastSequenceForSubject(0, "fleet.evt.plan.01J.>"))
	if err := errors.Join(created, m.InProgress(), appended, m.DoubleAck(ctx)); err != nil {
		t.Error(err)
	}
	watcher, err := leases.WatchAll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if e := <-watcher.Updates(); e == nil || !bytes.Equal(e.Value(), []byte("w")) {
		t.Errorf("watch: got %v", e)
	}
	if err := watcher.Stop(); err != nil {
		t.Error(err)
	}
	if w.LastError() != nil {
		t.Errorf("forbidden on the way: %v", w.LastError())
	}
}

func TestDeployedConf_NoPasswordNoServer(t *testing.T) {
	if _, err := server.ProcessConfigFile("../../deploy/nats.conf"); err == nil || !strings.Contains(err.Error(), "PASSWORD") {
		t.Errorf("without passwords: got %v, want an error that names one", err)
	}
}
