package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// markerTTL is how long the mark of a deletion stays, so that watchers that were away see it.
const markerTTL = time.Hour

// JetStream is a Store in a JetStream key-value bucket.
type JetStream struct{ bucket jetstream.KeyValue }

// Open opens a bucket that package events declared.
func Open(ctx context.Context, js jetstream.JetStream, bucket string) (*JetStream, error) {
	b, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("kv: open bucket %q: %w", bucket, err)
	}
	return &JetStream{bucket: b}, nil
}

// Create implements Bucket.
func (s *JetStream) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	rev, err := s.bucket.Create(ctx, key, value)
	return rev, s.failure("create", key, err)
}

// Update implements Bucket.
func (s *JetStream) Update(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	rev, err := s.bucket.Update(ctx, key, value, rev)
	return rev, s.failure("update", key, err)
}

// Put implements Bucket.
func (s *JetStream) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	rev, err := s.bucket.Put(ctx, key, value)
	return rev, s.failure("put", key, err)
}

// Get implements Bucket.
func (s *JetStream) Get(ctx context.Context, key string) (Entry, error) {
	e, err := s.bucket.Get(ctx, key)
	if err != nil {
		return Entry{}, s.failure("get", key, err)
	}
	return entry(e), nil
}

// Delete implements Bucket.
func (s *JetStream) Delete(ctx context.Context, key string, rev uint64) error {
	opts := []jetstream.KVDeleteOpt{jetstream.PurgeTTL(markerTTL)}
	if rev != 0 {
		opts = append(opts, jetstream.LastRevision(rev))
	}
	// A plain delete leaves a mark for ever.
	return s.failure("delete", key, s.bucket.Purge(ctx, key, opts...))
}

// List implements Scanner.
func (s *JetStream) List(ctx context.Context, prefix string) ([]Entry, error) {
	w, err := s.bucket.Watch(ctx, filter(prefix), jetstream.IgnoreDeletes())
	if err != nil {
		return nil, s.failure("list", prefix, err)
	}
	defer w.Stop()
	var all []Entry
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return nil, fmt.Errorf("kv: list %q in bucket %q: watcher ended", prefix, s.bucket.Bucket())
			}
			if e == nil {
				slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
				return all, nil
			}
			if strings.HasPrefix(e.Key(), prefix) {
				all = append(all, entry(e))
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("kv: list %q in bucket %q: %w", prefix, s.bucket.Bucket(), ctx.Err())
		}
	}
}

// filter is the narrowest key filter that has all keys with a prefix: whole tokens only.
func filter(prefix string) string {
	return prefix[:strings.LastIndexByte(prefix, '.')+1] + ">"
}

// Watch implements Scanner.
func (s *JetStream) Watch(ctx context.Context) (<-chan Entry, error) {
	w, err := s.bucket.WatchAll(ctx)
	if err != nil {
		return nil, s.failure("watch", ">", err)
	}
	out := make(chan Entry)
	go func() {
		defer close(out)
		defer w.Stop()
		for {
			select {
			case e, ok := <-w.Updates():
				if !ok || !send(ctx, out, e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func send(ctx context.Context, out chan<- Entry, e jetstream.KeyValueEntry) bool {
	var v Entry
	if e != nil {
		v = entry(e)
	}
	select {
	case out <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

func entry(e jetstream.KeyValueEntry) Entry {
	return Entry{
		Key: e.Key(), Value: e.Value(), Revision: e.Revision(), Created: e.Created(), Deleted: e.Operation() != jetstream.KeyValuePut,
	}
}

// failure gives an error of the client one of our names.
func (s *JetStream) failure(verb, key string, err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []struct{ theirs, ours error }{
		{jetstream.ErrKeyNotFound, ErrNotFound},
		{jetstream.ErrInvalidKey, ErrKey},
	} {
		if errors.Is(err, known.theirs) {
			err = known.ours
		}
	}
	if wrongSequence(err) {
		err = ErrConflict
		if verb == "create" {
			err = ErrExists
		}
	}
	return fmt.Errorf("kv: %s %q in bucket %q: %w", verb, key, s.bucket.Bucket(), err)
}

// wrongSequence tells whether the server refused because of the revision; replicated buckets have a code of their own.
func wrongSequence(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
	}
	return errors.Is(err, jetstream.ErrKeyExists)
}
