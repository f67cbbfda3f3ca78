package objectstore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// Options configure a JetStream store. Zero values mean the defaults named here.
type Options struct {
	// Bucket is the object store's name, without "OBJ_". Default FLEET_LAYERS.
	Bucket string
	// ChunkSize is the size of a stored message in bytes, lowered to what the server's
	// max_payload admits. Default 512 KiB.
	ChunkSize int
	// Window is how many chunks of one upload may be unacknowledged. Default 8.
	Window int
	// Uploads is how many Puts transfer at the same time; others wait. Default 2: each
	// stored chunk costs the server an fsync that other streams wait for.
	Uploads int
	// Stall is how long a transfer may make no progress before it fails with ErrStalled.
	// Default DefaultStall.
	Stall time.Duration
	// Attempts is how often one Put tries to transfer. Default 4.
	Attempts int
	// Log tells of attempts that failed and were made again.
	Log zerolog.Logger
}

// DefaultStall is how long a transfer may make no progress.
const DefaultStall = 30 * time.Second

const (
	defaultBucket    = "FLEET_LAYERS"
	defaultChunkSize = 512 << 10
	defaultWindow    = 8
	defaultUploads   = 2
	defaultAttempts  = 4

	// chunkOverhead is what a chunk message may need beside its payload; max_payload
	// counts headers too.
	chunkOverhead = 1 << 10
	// requestTimeout is how long one request without content may take before it is made
	// again. On a slow link it queues behind chunks.
	requestTimeout = 4 * time.Second
	// minRate, in bytes per second, with Stall gives the deadline of a Get without one.
	minRate = 64 << 10
)

// JetStream is a Store in a bucket of JetStream's object store. The bucket must exist and
// must allow direct gets, as nats.go makes it; the server must be 2.11 or later.
//
// The connection should not be shared with heartbeats: on a slow link they would queue
// behind chunks. A user of the store needs no more than to publish on
//
//	$O.<bucket>.>
//	$JS.API.DIRECT.GET.OBJ_<bucket>
//	$JS.API.STREAM.INFO.OBJ_<bucket>
//	$JS.API.STREAM.PURGE.OBJ_<bucket>
//
// and to subscribe to its own inbox. No consumer is created.
type JetStream struct {
	js      jetstream.JetStream
	pub     jetstream.JetStream // own context: its unacknowledged messages are only ours
	o       Options
	uploads chan struct{} // one token for each transfer

	mu     sync.Mutex
	stream jetstream.Stream // nil until first needed
}

// NewJetStream returns a store in the bucket that o names. It does not talk to the server.
func NewJetStream(js jetstream.JetStream, o Options) (*JetStream, error) {
	o.Bucket = cmp.Or(o.Bucket, defaultBucket)
	o.ChunkSize = cmp.Or(o.ChunkSize, defaultChunkSize)
	o.Window = cmp.Or(o.Window, defaultWindow)
	o.Uploads = cmp.Or(o.Uploads, defaultUploads)
	o.Stall = cmp.Or(o.Stall, DefaultStall)
	o.Attempts = cmp.Or(o.Attempts, defaultAttempts)
	if o.ChunkSize < 1 || o.Window < 1 || o.Uploads < 1 || o.Stall < 0 || o.Attempts < 1 {
		return nil, fmt.Errorf("objectstore: open bucket %q: negative option", o.Bucket)
	}
	pub, err := jetstream.New(js.Conn(),
		jetstream.WithPublishAsyncMaxPending(2*o.Window*o.Uploads),
		// Only to forget chunks that an attempt gave up on; progress is watched in send.
		jetstream.WithPublishAsyncTimeout(time.Duration(o.Window+1)*o.Stall))
	if err != nil {
		return nil, fmt.Errorf("objectstore: open bucket %q: %w", o.Bucket, err)
	}
	return &JetStream{js: js, pub: pub, o: o, uploads: make(chan struct{}, o.Uploads)}, nil
}

// Stat implements Store.
func (s *JetStream) Stat(ctx context.Context, name string) (Info, error) {
	m, err := s.findMeta(ctx, name)
	if err == nil {
		m, err = s.complete(ctx, m)
	}
	if err != nil {
		return Info{}, failed("stat", name, err)
	}
	return m.Info()
}

// complete returns m if the leader holds all chunks of that object.
func (s *JetStream) complete(ctx context.Context, m record) (record, error) {
	if m.Deleted {
		return record{}, ErrNotFound
	}
	if err := m.usable(); err != nil {
		return record{}, err
	}
	n, err := s.countChunks(ctx, m.NUID)
	if err != nil {
		return record{}, err
	}
	if n != uint64(m.Chunks) {
		return record{}, fmt.Errorf("%w: %d of %d chunks", ErrCorrupt, n, m.Chunks)
	}
	return m, nil
}

// Delete implements Store: a tombstone replaces the record, then the chunks go.
func (s *JetStream) Delete(ctx context.Context, name string) error {
	m, err := s.readMeta(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return failed("delete", name, err)
	}
	if err := s.bury(ctx, m); err != nil {
		return failed("delete", name, err)
	}
	return nil
}

// List implements Store.
func (s *JetStream) List(ctx context.Context) ([]Info, error) {
	found := map[string]Info{} // a record that is replaced meanwhile comes twice
	err := s.eachMeta(ctx, func(m record) error {
		if m.Deleted {
			delete(found, m.Name)
			return nil
		}
		info, err := m.Info()
		found[m.Name] = info
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("objectstore: list: %w", err)
	}
	return slices.SortedFunc(maps.Values(found), byName), nil
}

// record is the meta message of an object in ADR-20 form, and where it is stored.
type record struct {
	jetstream.ObjectInfo
	seq  uint64
	time time.Time // server's
}

// natsDigest begins a digest in ADR-20 form; base64url of the sum follows.
const natsDigest = "SHA-256="

// Info translates the record.
func (m record) Info() (Info, error) {
	info := Info{Name: m.Name, Size: int64(m.Size), ModTime: m.time, Version: m.seq}
	enc, ok := strings.CutPrefix(m.Digest, natsDigest)
	sum, err := base64.URLEncoding.DecodeString(enc)
	if !ok || err != nil {
		return Info{}, failed("stat", m.Name, fmt.Errorf("%w: digest %q", ErrCorrupt, m.Digest))
	}
	info.Digest = digestString(sum)
	return info, m.marks(&info)
}

func parseRecord(msg *nats.Msg) (record, error) {
	var m record
	if err := json.Unmarshal(msg.Data, &m.ObjectInfo); err != nil || m.NUID == "" {
		return record{}, fmt.Errorf("%w: its record does not parse", ErrCorrupt)
	}
	var err error
	m.seq, m.time, err = stored(msg)
	return m, err
}

func (s *JetStream) streamName() string { return "OBJ_" + s.o.Bucket }

func (s *JetStream) chunkSubject(nuid string) string { return "$O." + s.o.Bucket + ".C." + nuid }

func (s *JetStream) metaSubject(name string) string {
	return "$O." + s.o.Bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// readMeta returns the newest record of name, a tombstone included.
func (s *JetStream) readMeta(ctx context.Context, name string) (record, error) {
	if err := ValidName(name); err != nil {
		return record{}, err
	}
	msg, err := s.lastMsg(ctx, s.metaSubject(name))
	if err != nil {
		return record{}, err
	}
	return parseRecord(msg)
}

// eachMeta calls fn with every record, tombstones included, in the order stored.
func (s *JetStream) eachMeta(ctx context.Context, fn func(record) error) error {
	r := s.newBatchReader("$O."+s.o.Bucket+".M.>", metaBatch)
	for {
		msg, err := r.next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		m, err := parseRecord(msg)
		if err != nil {
			return err
		}
		if err := fn(m); err != nil {
			return err
		}
	}
}

// publishMeta stores a record that replaces older ones of its name, and returns its
// sequence. It is tried once.
func (s *JetStream) publishMeta(ctx context.Context, info jetstream.ObjectInfo, opts ...jetstream.PublishOpt) (uint64, error) {
	info.ModTime = time.Time{} // readers take the message's time
	data, err := json.Marshal(info)
	if err != nil {
		return 0, err
	}
	msg := nats.NewMsg(s.metaSubject(info.Name))
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	msg.Data = data
	ctx, cancel := context.WithTimeout(ctx, s.o.Stall)
	defer cancel()
	ack, err := unblocked(ctx, func() (*jetstream.PubAck, error) {
		return s.js.PublishMsg(ctx, msg, append(opts, jetstream.WithRetryAttempts(0))...)
	})
	if err != nil {
		return 0, err
	}
	return ack.Sequence, s.checkStream(ack)
}

// checkStream refuses an acknowledgement by another stream than the bucket's.
func (s *JetStream) checkStream(ack *jetstream.PubAck) error {
	if ack.Stream != s.streamName() {
		return fmt.Errorf("stored in stream %q, want %q", ack.Stream, s.streamName())
	}
	return nil
}

// handle returns the bucket's stream.
func (s *JetStream) handle(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		return s.stream, nil
	}
	st, err := ask(ctx, s.o.Stall, func(ctx context.Context) (jetstream.Stream, error) {
		return s.js.Stream(ctx, s.streamName())
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %q: %w", s.o.Bucket, err)
	}
	s.stream = st
	return st, nil
}

// countChunks returns how many chunk messages the server holds under nuid.
func (s *JetStream) countChunks(ctx context.Context, nuid string) (uint64, error) {
	subject := s.chunkSubject(nuid)
	info, err := s.streamInfo(ctx, subject)
	if err != nil {
		return 0, err
	}
	return info.State.Subjects[subject], nil
}

// streamInfo asks the leader for the stream's state and the message counts under filter.
func (s *JetStream) streamInfo(ctx context.Context, filter string) (*jetstream.StreamInfo, error) {
	st, err := s.handle(ctx)
	if err != nil {
		return nil, err
	}
	return ask(ctx, s.o.Stall, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return st.Info(ctx, jetstream.WithSubjectFilter(filter))
	})
}

func (s *JetStream) purge(ctx context.Context, opts ...jetstream.StreamPurgeOpt) error {
	st, err := s.handle(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Stall)
	defer cancel()
	_, err = unblocked(ctx, func() (struct{}, error) { return struct{}{}, st.Purge(ctx, opts...) })
	return err
}
