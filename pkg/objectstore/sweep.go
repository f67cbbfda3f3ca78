package objectstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Sweep implements Sweeper: chunks without a live record, and tombstones. Ages are
// differences of times stamped by the server. The order matters: chunks are listed before
// records, so an upload that ends meanwhile shows its record.
func (s *JetStream) Sweep(ctx context.Context, olderThan time.Duration) (int, error) {
	info, err := s.streamInfo(ctx, s.chunkSubject(">"))
	if err != nil {
		return 0, fmt.Errorf("objectstore: sweep: %w", err)
	}
	now := info.TimeStamp
	orphans := info.State.Subjects
	var tombs []record
	err = s.eachMeta(ctx, func(m record) error {
		if !m.Deleted {
			delete(orphans, s.chunkSubject(m.NUID))
		} else if now.Sub(m.time) >= olderThan {
			tombs = append(tombs, m)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("objectstore: sweep: %w", err)
	}
	removed := 0
	for subject := range orphans {
		fault.At("store.sweep")
		gone, err := s.sweepChunks(ctx, subject, now.Add(-olderThan))
		if err != nil {
			return removed, fmt.Errorf("objectstore: sweep %q: %w", nuidOf(subject), err)
		}
		fault.At("store.swept")
		removed += gone
	}
	for _, m := range tombs {
		// Up to this sequence only: a newer record of the name stays.
		err := s.purge(ctx, jetstream.WithPurgeSubject(s.metaSubject(m.Name)), jetstream.WithPurgeSequence(m.seq+1))
		if err != nil {
			return removed, fmt.Errorf("objectstore: sweep tombstone %q: %w", m.Name, err)
		}
		fault.At("store.tombstone")
		removed++
	}
	return removed, nil
}

// sweepChunks removes the chunks under subject if the newest is not after latest.
func (s *JetStream) sweepChunks(ctx context.Context, subject string, latest time.Time) (int, error) {
	msg, err := s.lastMsg(ctx, subject)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	seq, at, err := stored(msg)
	if err != nil || at.After(latest) {
		return 0, err
	}
	// A chunk that arrives now is above seq: the upload goes on, and its record is refused.
	return 1, s.purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq+1))
}

func nuidOf(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
