package objectstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// ErrChanged says that an object is no longer in the version that was meant.
var ErrChanged = errors.New("object has changed")

// Marker is the second ability of stores whose garbage can be removed beside writers that
// use an object again: each step names the version it means and fails with ErrChanged once
// somebody took another one, so whoever comes first wins. Readers see marked objects as before.
type Marker interface {
	// Clock is the present time by the clock that stamps objects and marks.
	Clock(ctx context.Context) (time.Time, error)
	// Mark notes that nobody seems to need the object, and returns it with its new version
	// and the time of the mark.
	Mark(ctx context.Context, o Info) (Info, error)
	// Spare takes a mark away; without one it changes nothing. Put does the same to an object
	// that it finds there. Returns ErrNotFound or ErrCorrupt.
	Spare(ctx context.Context, name string) (Info, error)
	// Reap deletes a marked object.
	Reap(ctx context.Context, o Info) error
	// Quarantine makes Stat and Get fail with ErrCorrupt and the reason, and the next Put of
	// the name store it anew.
	Quarantine(ctx context.Context, o Info, reason string) error
}

// Keys of a record's metadata. Other readers of the bucket see and ignore them.
const (
	metaMarked      = "warmfleet-marked"      // "true": the record's time is that of the mark
	metaStored      = "warmfleet-stored"      // when the object itself was stored (RFC 3339)
	metaQuarantined = "warmfleet-quarantined" // why
)

const (
	// spareTries bounds how often Spare is overtaken; each time somebody else made progress.
	spareTries = 20
	// maxReason bounds a reason in a record, in bytes.
	maxReason = 200
)

// Clock implements Marker by the leader's clock.
func (s *JetStream) Clock(ctx context.Context) (time.Time, error) {
	info, err := s.streamInfo(ctx, "$O."+s.o.Bucket+".M.none")
	if err != nil {
		return time.Time{}, fmt.Errorf("objectstore: ask for the time: %w", err)
	}
	return info.TimeStamp, nil
}

// Mark implements Marker.
func (s *JetStream) Mark(ctx context.Context, o Info) (Info, error) {
	info, err := s.rewrite(ctx, o, map[string]string{metaMarked: "true"})
	if err != nil {
		return Info{}, failed("mark", o.Name, err)
	}
	return info, nil
}

// Quarantine implements Marker.
func (s *JetStream) Quarantine(ctx context.Context, o Info, reason string) error {
	if _, err := s.rewrite(ctx, o, map[string]string{metaQuarantined: reason[:min(len(reason), maxReason)]}); err != nil {
		return failed("quarantine", o.Name, err)
	}
	return nil
}

// Spare implements Marker.
func (s *JetStream) Spare(ctx context.Context, name string) (Info, error) {
	for range spareTries {
		m, err := s.findMeta(ctx, name)
		if err == nil {
			m, err = s.complete(ctx, m)
		}
		if err != nil {
			return Info{}, failed("spare", name, err)
		}
		info, err := m.Info()
		if err != nil || info.Marked.IsZero() {
			return info, err
		}
		if info, err = s.rewrite(ctx, info, nil); !errors.Is(err, ErrChanged) {
			return info, err
		}
	}
	return Info{}, failed("spare", name, ErrChanged)
}

// rewrite gives an object's record other metadata, if it still is the version of o.
func (s *JetStream) rewrite(ctx context.Context, o Info, metadata map[string]string) (Info, error) {
	m, err := s.version(ctx, o)
	if err != nil {
		return Info{}, err
	}
	info, err := m.Info()
	if err != nil {
		return Info{}, err
	}
	next := m.ObjectInfo
	next.Metadata = map[string]string{metaStored: info.ModTime.Format(time.RFC3339Nano)}
	maps.Copy(next.Metadata, metadata)
	seq, err := s.publishMeta(ctx, next, jetstream.WithExpectLastSequencePerSubject(m.seq))
	if err != nil {
		return Info{}, overtaken(err)
	}
	if m, err = s.readMeta(ctx, o.Name); err != nil || m.seq != seq {
		return Info{}, errors.Join(err, ErrChanged)
	}
	return m.Info()
}

// version is the record of o, or ErrChanged.
func (s *JetStream) version(ctx context.Context, o Info) (record, error) {
	m, err := s.readMeta(ctx, o.Name)
	if errors.Is(err, ErrNotFound) || err == nil && (m.Deleted || m.seq != o.Version) {
		return record{}, ErrChanged
	}
	return m, err
}

// Reap implements Marker.
func (s *JetStream) Reap(ctx context.Context, o Info) error {
	m, err := s.version(ctx, o)
	if err == nil && m.Metadata[metaMarked] == "" {
		err = ErrChanged
	}
	if err == nil {
		err = s.bury(ctx, m)
	}
	if err != nil {
		return failed("reap", o.Name, err)
	}
	return nil
}

// bury replaces a record by a tombstone, then drops the chunks. The expected sequence keeps
// the tombstone from burying what somebody stores or spares meanwhile.
func (s *JetStream) bury(ctx context.Context, m record) error {
	if !m.Deleted {
		dead := m.ObjectInfo
		dead.Deleted, dead.Size, dead.Chunks, dead.Digest, dead.Metadata = true, 0, 0, "", nil
		if _, err := s.publishMeta(ctx, dead, jetstream.WithExpectLastSequencePerSubject(m.seq)); err != nil {
			return overtaken(err)
		}
	}
	fault.At("store.buried")
	return s.purge(ctx, jetstream.WithPurgeSubject(s.chunkSubject(m.NUID)))
}

// overtaken names the server's refusal of an expected sequence.
func overtaken(err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == errCodeWrongSequence || api.ErrorCode == errCodeWrongSequenceR) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// marks reads a record's metadata into info.
func (m record) marks(info *Info) error {
	if m.Metadata[metaMarked] != "" {
		info.Marked = m.time
	}
	info.Quarantined = m.Metadata[metaQuarantined]
	if at := m.Metadata[metaStored]; at != "" {
		var err error
		if info.ModTime, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return failed("stat", m.Name, fmt.Errorf("%w: its time %q", ErrCorrupt, at))
		}
	}
	return nil
}

// usable fails for an object in quarantine.
func (m record) usable() error {
	if why := m.Metadata[metaQuarantined]; why != "" {
		return fmt.Errorf("%w: in quarantine: %s", ErrCorrupt, why)
	}
	return nil
}
