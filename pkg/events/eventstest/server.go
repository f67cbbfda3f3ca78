// Package eventstest holds the conformance suites of package events and an embedded NATS server for tests.
package eventstest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Server starts a NATS server as Start does and connects to it. Both end with the test.
func Server(t testing.TB, change ...func(*server.Options)) jetstream.JetStream {
	t.Helper()
	return Connect(t, Start(t, change...))
}

// Start starts a NATS server with JetStream inside this process, without a listener. It ends with the test.
// The options can be changed before the start.
func Start(t testing.TB, change ...func(*server.Options)) *server.Server {
	t.Helper()
	opts := &server.Options{
		ServerName: "test", DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		NoSystemAccount: true,
	}
	for _, c := range change {
		c(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("start NATS server: %v", err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS server is not ready")
	}
	return s
}

// Connect makes one more connection to a server started in this process.
func Connect(t testing.TB, s *server.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatalf("connect to NATS server: %v", err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("open JetStream: %v", err)
	}
	return js
}
