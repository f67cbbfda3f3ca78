// Package fleet joins a NATS connection with everything a process of the fleet meets the
// others through, and makes schedulers and workers of it.
//
// It only wires: whatever decides something belongs elsewhere.
package fleet

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/scheduler"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// Fleet is the shared handles of one connection.
type Fleet struct {
	Conn        *nats.Conn
	JetStream   jetstream.JetStream
	Subjects    events.Subjects
	Log         events.Log
	Queue       events.FullQueue
	Submissions events.Submissions
	Output      events.Output
	Store       objectstore.Store

	Leases, Workers, Checkpoints, Plans, Pools, Images, Sessions kv.Store

	layers *nats.Conn
}

// Options say how to open a fleet.
type Options struct {
	// Prefix of all subjects, "fleet" if empty.
	Prefix string
	// Declare makes the streams and buckets first; schedulers do, others expect them.
	Declare bool
	// Layers, if set, is a connection of its own for the object store: a client writes under
	// one lock, so a large upload on the shared one could hold heartbeats up.
	Layers jetstream.JetStream
	// Stall is how long a transfer of layers may make no progress, objectstore.DefaultStall if 0.
	Stall time.Duration
	// Limits of the streams, if Declare.
	Limits events.Limits
}

// Open returns the handles of the fleet on a connection. The connection stays the caller's.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Fleet, error) {
	subjects, err := events.NewSubjects(o.Prefix)
	if err != nil {
		return nil, err
	}
	if o.Declare {
		if err := events.Declare(ctx, js, events.Options{Prefix: o.Prefix, Limits: o.Limits}); err != nil {
			return nil, err
		}
	}
	f := &Fleet{
		Conn: js.Conn(), JetStream: js, Subjects: subjects, Log: events.NewLog(js, subjects),
		Queue: events.NewQueue(js, subjects, events.QueueOptions{}), Submissions: events.NewSubmissions(js, subjects), Output: events.NewOutput(js, subjects),
	}
	names := subjects.Buckets()
	for name, bucket := range map[string]*kv.Store{
		names.Leases: &f.Leases, names.Workers: &f.Workers, names.Checkpoints: &f.Checkpoints, names.Plans: &f.Plans,
		names.Pools: &f.Pools, names.Images: &f.Images, names.Sessions: &f.Sessions,
	} {
		if *bucket, err = kv.Open(ctx, js, name); err != nil {
			return nil, err
		}
	}
	layers := js
	if o.Layers != nil {
		layers = o.Layers
	}
	if f.Store, err = objectstore.NewJetStream(layers, objectstore.Options{Bucket: subjects.LayersBucket(), Stall: o.Stall}); err != nil {
		return nil, err
	}
	f.layers = layers.Conn()
	return f, nil
}

// Close closes the connections.
func (f *Fleet) Close() {
	f.layers.Close()
	f.Conn.Close()
}

// Scheduler returns a scheduler of the fleet; see scheduler.New.
func (f *Fleet) Scheduler(pullWait time.Duration, log zerolog.Logger) *scheduler.Scheduler {
	return scheduler.New(scheduler.Fleet{
		Conn: f.Conn, Subjects: f.Subjects, Log: f.Log, Queue: f.Queue, Submissions: f.Submissions,
		Workers: f.Workers, Leases: f.Leases, Plans: f.Plans, Checkpoints: f.Checkpoints, Store: f.Store,
		Pools: f.Pools, Images: f.Images, Sessions: f.Sessions,
	}, pullWait, log)
}

// Worker returns a worker of the fleet; see worker.New.
func (f *Fleet) Worker(ctx context.Context, cfg worker.Config, log zerolog.Logger) (*worker.Worker, error) {
	return worker.New(ctx, cfg, worker.Fleet{
		Conn: f.Conn, Subjects: f.Subjects, Log: f.Log, Queue: f.Queue, Workers: f.Workers, Checkpoints: f.Checkpoints, Store: f.Store,
		Output: f.Output, Pools: f.Pools, Images: f.Images, Sessions: f.Sessions,
	}, log)
}
