package events

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// LeaseTTL is how long a lease lives without renewal.
	LeaseTTL = 5 * time.Second
	// WorkerTTL is how long a worker's record lives without a heartbeat.
	WorkerTTL = 6 * time.Second
	// EventAge is how long events are kept; records of plans and checkpoints outlive them (docs/storage.md).
	EventAge = 30 * 24 * time.Hour

	outputAge     = 30 * 24 * time.Hour // as long as the events that speak of it
	letterAge     = 90 * 24 * time.Hour // time for a person to look
	dedupeWindow  = 10 * time.Minute    // longer than any retry of a publish
	markerTTL     = time.Minute         // how long watchers can learn that a key is gone
	smallestLimit = 4 << 20             // a stream is not made smaller than this, in bytes
)

// Options of Declare. Zero values mean the defaults.
type Options struct {
	Prefix   string
	Replicas int // 1; 3 in a cluster
	AckWait  time.Duration
	Limits   Limits
}

// Limits are the sizes in bytes that streams may take. The server reserves them, so the sum must be less than it
// has; a default that does not fit is halved until it does, a size given here is not.
type Limits struct {
	Submissions int64 // 128 MiB; a full stream refuses new submissions
	Commands    int64 // 64 MiB; a full stream refuses new commands
	Output      int64 // 1 GiB; the oldest output goes first
	DeadLetters int64 // 64 MiB; the oldest letter goes first
	Events      int64 // 0: no limit but the disk; a full stream refuses new events
	Layers      int64 // 0: no limit but the disk
}

// Declare makes every stream, bucket and fixed consumer of a fleet. It is idempotent: what differs from what
// is wanted is updated, settings it does not know are left alone, and what NATS cannot change is an error
// that names the setting. The consumers of pools are made by Queue.EnsurePool.
func Declare(ctx context.Context, js jetstream.JetStream, o Options) error {
	s, err := NewSubjects(o.Prefix)
	if err != nil {
		return err
	}
	o.Replicas = max(o.Replicas, 1)
	for _, d := range declarations(s, o) {
		if _, err := d.declare(ctx, js); err != nil {
			return err
		}
	}
	opts := QueueOptions{AckWait: o.AckWait, Replicas: o.Replicas}
	return declareConsumer(ctx, js, s.SubmissionsStream(), submissionsConsumer, func(c *jetstream.ConsumerConfig) {
		commonConsumer(c, opts)
		c.FilterSubject = s.Submit("*")
	})
}

// declaration is a stream as it should be. Its set function changes only what we care about, in the form in which the
// server reports it, so that applying it to the present configuration shows whether anything differs.
type declaration struct {
	name  string
	limit int64 // wanted MaxBytes; 0: none
	firm  bool  // the limit was asked for: don't halve it
	set   func(*jetstream.StreamConfig)
}

// declare makes or updates the stream and tells whether it did.
func (d declaration) declare(ctx context.Context, js jetstream.JetStream) (changed bool, err error) {
	for limit := d.limit; ; limit /= 2 {
		changed, err = d.attempt(ctx, js, limit)
		if !isCode(err, codeNoStorage) || d.firm || limit/2 < smallestLimit {
			break
		}
	}
	if isCode(err, codeNoStorage) {
		err = fmt.Errorf("%w: it would take %d bytes of the server's limit: %w", ErrStorage, max(d.limit, 1), err)
	}
	if err != nil {
		return false, fmt.Errorf("events: declare stream %q: %w", d.name, err)
	}
	return changed, nil
}

func (d declaration) attempt(ctx context.Context, js jetstream.JetStream, limit int64) (bool, error) {
	set := func(c *jetstream.StreamConfig) {
		d.set(c)
		c.MaxBytes = -1
		if limit > 0 {
			c.MaxBytes = limit
		}
	}
	s, err := js.Stream(ctx, d.name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		c := jetstream.StreamConfig{Name: d.name}
		set(&c)
		_, err = js.CreateStream(ctx, c)
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	have := s.CachedInfo().Config
	want := have
	set(&want)
	diff := differences(have, want)
	if len(diff) == 0 {
		return false, nil
	}
	if _, err := js.UpdateStream(ctx, want); err != nil {
		return false, fmt.Errorf("change %s: %w", strings.Join(diff, ", "), err)
	}
	return true, nil
}

// differences names the fields in which two configurations differ, with both values.
func differences(have, want any) []string {
	var diff []string
	h, w := reflect.ValueOf(have), reflect.ValueOf(want)
	for i := range h.NumField() {
		a, b := h.Field(i).Interface(), w.Field(i).Interface()
		if !reflect.DeepEqual(a, b) {
			diff = append(diff, fmt.Sprintf("%s from %v to %v", h.Type().Field(i).Name, a, b))
		}
	}
	return diff
}

// declareConsumer makes or updates a durable consumer, by the same rules as streams.
func declareConsumer(ctx context.Context, js jetstream.JetStream, stream, name string, set func(*jetstream.ConsumerConfig)) error {
	c, err := js.Consumer(ctx, stream, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		want := jetstream.ConsumerConfig{Durable: name, Name: name}
		set(&want)
		if _, err := js.CreateConsumer(ctx, stream, want); err != nil {
			return fmt.Errorf("events: declare consumer %q of stream %q: %w", name, stream, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("events: declare consumer %q of stream %q: %w", name, stream, err)
	}
	have := c.CachedInfo().Config
	want := have
	set(&want)
	diff := differences(have, want)
	if len(diff) == 0 {
		return nil
	}
	if _, err := js.UpdateConsumer(ctx, stream, want); err != nil {
		return fmt.Errorf("events: declare consumer %q of stream %q: change %s: %w", name, stream, strings.Join(diff, ", "), err)
	}
	return nil
}

// commonConsumer has what all work queue consumers share.
func commonConsumer(c *jetstream.ConsumerConfig, o QueueOptions) {
	c.AckPolicy = jetstream.AckExplicitPolicy
	c.AckWait = o.AckWait // short: it is the time a dead worker goes unnoticed
	if c.AckWait == 0 {
		c.AckWait = DefaultAckWait
	}
	c.BackOff = nil         // it would overwrite AckWait
	c.MaxDeliver = -1       // attempts are counted in the log; a message that reached the maximum would lie there for ever
	c.MaxAckPending = 20000 // messages parked by a Nak with delay count, and 1000 of them would stop all others
	c.MaxWaiting = 4096     // idle slots wait in pulls; cannot be changed later
	c.MemoryStorage = false // who holds what must survive a restart
	c.Replicas = o.Replicas // as the stream, so that a takeover knows what is held
	c.InactiveThreshold = 0 // a queue without workers stays
	c.DeliverPolicy = jetstream.DeliverAllPolicy
	c.ReplayPolicy = jetstream.ReplayInstantPolicy
}
