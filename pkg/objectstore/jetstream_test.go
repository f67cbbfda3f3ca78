package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

func TestJetStream(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store {
		s, _, _ := newStore(t)
		return s
	})
}

func TestJetStream_ReadableByNATSClients(t *testing.T) {
	s, js, ob := newStore(t)
	for _, size := range []int{0, 1, 512 << 10, 2_000_001} {
		name := "ours/" + string(rune('a'+size%26))
		data := objectstoretest.Bytes(uint64(size), size)
		put := objectstoretest.Put(t, s, name, data)
		got, err := ob.GetBytes(t.Context(), name)
		if err != nil {
			t.Fatalf("nats.go GetBytes: %v", err)
		}
		if !bytes.Equal(got, data) {
			t.Errorf("nats.go reads other bytes than the %d stored", size)
		}
		info, err := ob.GetInfo(t.Context(), name)
		if err != nil {
			t.Fatalf("nats.go GetInfo: %v", err)
		}
		if int64(info.Size) != put.Size || info.Bucket != bucket || info.Name != name || !info.ModTime.Equal(put.ModTime) {
			t.Errorf("nats.go GetInfo: got %+v, want %+v", info, put)
		}
		if got, want := int(info.Chunks), (size+512<<10-1)/(512<<10); got != want {
			t.Errorf("chunks: got %d, want %d", got, want)
		}
	}
	if err := s.Delete(t.Context(), "ours/a"); err != nil {
		t.Fatal(err)
	}
	list, err := ob.List(t.Context())
	if err != nil {
		t.Fatalf("nats.go List: %v", err)
	}
	ours, err := s.List(t.Context())
	if err != nil || len(list) != len(ours) {
		t.Errorf("List: nats.go sees %d objects, we see %d, %v", len(list), len(ours), err)
	}
	if n := messages(t, js, "$O."+bucket+".M.>"); n != uint64(len(ours))+1 {
		t.Errorf("records: got %d, want one an object and a tombstone", n)
	}
}

func TestJetStream_ReadsWhatNATSClientsWrote(t *testing.T) {
	s, _, ob := newStore(t)
	data := objectstoretest.Bytes(1, 1_000_000)
	if _, err := ob.PutBytes(t.Context(), "theirs", data); err != nil {
		t.Fatal(err)
	}
	objectstoretest.Check(t, s, "theirs", data)
	if _, err := s.Put(t.Context(), "theirs", nil); err != nil {
		t.Errorf("Put of an existing object: %v", err)
	}
	if err := ob.Delete(t.Context(), "theirs"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stat(t.Context(), "theirs"); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("Stat: got %v, want ErrNotFound", err)
	}
}

func TestJetStream_SmallMaxPayload(t *testing.T) {
	js := connect(t, startServer(t, func(o *server.Options) { o.MaxPayload = 64 << 10 }).ClientURL())
	createBucket(t, js, 0)
	s := openStore(t, js, objectstore.Options{})
	data := objectstoretest.Bytes(1, 1_000_000)
	objectstoretest.Put(t, s, "x", data)
	objectstoretest.Check(t, s, "x", data)
}

func TestJetStream_MissingBucket(t *testing.T) {
	js := connect(t, startServer(t, nil).ClientURL())
	s := openStore(t, js, objectstore.Options{})
	_, err := s.Put(t.Context(), "x", onlyReader{strings.NewReader("x")})
	if err == nil || !strings.Contains(err.Error(), bucket) {
		t.Errorf("Put: got %v, want an error that names the bucket", err)
	}
}

func TestJetStream_Corrupt(t *testing.T) {
	data := objectstoretest.Bytes(1, 2_000_000)
	chunks := func(t *testing.T, js jetstream.JetStream) []*jetstream.RawStreamMsg {
		t.Helper()
		st := stream(t, js)
		var msgs []*jetstream.RawStreamMsg
		for seq := uint64(1); seq <= 4; seq++ {
			m, err := st.GetMsg(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			msgs = append(msgs, m)
		}
		return msgs
	}
	tests := []struct {
		name   string
		damage func(*testing.T, jetstream.JetStream)
		stat   bool // Stat sees it too
	}{
		{"FirstChunkDeleted", func(t *testing.T, js jetstream.JetStream) {
			must(t, stream(t, js).DeleteMsg(t.Context(), 1))
		}, true},
		{"LastChunkDeleted", func(t *testing.T, js jetstream.JetStream) {
			must(t, stream(t, js).DeleteMsg(t.Context(), 4))
		}, true},
		{"AllChunksDeleted", func(t *testing.T, js jetstream.JetStream) {
			subject := chunks(t, js)[0].Subject
			must(t, stream(t, js).Purge(t.Context(), jetstream.WithPurgeSubject(subject)))
		}, true},
		{"ByteFlipped", func(t *testing.T, js jetstream.JetStream) {
			msgs := chunks(t, js)
			must(t, stream(t, js).Purge(t.Context(), jetstream.WithPurgeSubject(msgs[0].Subject)))
			msgs[2].Data[17] ^= 1
			for _, m := range msgs {
				_, err := js.Publish(t.Context(), m.Subject, m.Data)
				must(t, err)
			}
		}, false},
		{"ChunksSwapped", func(t *testing.T, js jetstream.JetStream) {
			msgs := chunks(t, js)
			must(t, stream(t, js).Purge(t.Context(), jetstream.WithPurgeSubject(msgs[0].Subject)))
			for _, i := range []int{1, 0, 2, 3} {
				_, err := js.Publish(t.Context(), msgs[i].Subject, msgs[i].Data)
				must(t, err)
			}
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, js, _ := newStore(t)
			objectstoretest.Put(t, s, "x", data)
			tt.damage(t, js)
			start := time.Now()
			_, err := objectstoretest.ReadAll(t.Context(), s, "x")
			if !errors.Is(err, objectstore.ErrCorrupt) {
				t.Errorf("Get: got %v, want ErrCorrupt", err)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("Get took %v to notice", took)
			}
			if _, err := s.Stat(t.Context(), "x"); errors.Is(err, objectstore.ErrCorrupt) != tt.stat {
				t.Errorf("Stat: got %v, want ErrCorrupt %v", err, tt.stat)
			}
			if !tt.stat {
				must(t, s.Delete(t.Context(), "x"))
			}
			objectstoretest.Put(t, s, "x", data)
			objectstoretest.Check(t, s, "x", data)
		})
	}
}

func TestJetStream_DigestOfRecordWrong(t *testing.T) {
	s, js, ob := newStore(t)
	objectstoretest.Put(t, s, "x", []byte("hello"))
	info, err := ob.GetInfo(t.Context(), "x")
	must(t, err)
	msg, err := stream(t, js).GetLastMsgForSubject(t.Context(), "$O."+bucket+".M.>")
	must(t, err)
	forged := strings.Replace(string(msg.Data), info.Digest[:12], "SHA-256=AAAA", 1)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: msg.Subject, Data: []byte(forged), Header: msg.Header})
	must(t, err)
	if _, err := objectstoretest.ReadAll(t.Context(), s, "x"); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("Get: got %v, want ErrCorrupt", err)
	}
}

// Case I1: parts without an owner go in time, uploads in progress stay.
func TestJetStream_Sweep(t *testing.T) {
	s, js, _ := newStore(t)
	data := objectstoretest.Bytes(1, 1_100_000)
	objectstoretest.Put(t, s, "live", data)
	for range 3 {
		_, err := js.Publish(t.Context(), "$O."+bucket+".C.ORPHAN", data[:1000])
		must(t, err)
	}
	objectstoretest.Put(t, s, "dead", data)
	must(t, s.Delete(t.Context(), "dead"))
	before := messages(t, js, ">")

	n, err := s.Sweep(t.Context(), time.Hour)
	if n != 0 || err != nil {
		t.Errorf("Sweep of an hour: got %d, %v, want nothing", n, err)
	}
	if got := messages(t, js, ">"); got != before {
		t.Errorf("messages: got %d, want the %d before", got, before)
	}
	pr, pw := io.Pipe()
	done := make(chan error)
	go func() {
		_, err := s.Put(t.Context(), "slow", pr)
		done <- err
	}()
	_, err = pw.Write(data)
	must(t, err)

	n, err = s.Sweep(t.Context(), 0)
	if n < 2 || err != nil {
		t.Errorf("Sweep: got %d, %v, want the orphan and the tombstone", n, err)
	}
	// Its chunks were swept under it, as only a grace of nothing does: no record may follow.
	must(t, pw.Close())
	if err := <-done; err == nil {
		objectstoretest.Check(t, s, "slow", data)
	}
	if _, err := s.Sweep(t.Context(), 0); err != nil {
		t.Error(err)
	}
	infos, err := s.List(t.Context())
	must(t, err)
	if got, want := messages(t, js, ">"), uint64(4*len(infos)); got != want {
		t.Errorf("messages: got %d, want %d", got, want)
	}
	objectstoretest.Check(t, s, "live", data)
}

func TestJetStream_StoreLimit(t *testing.T) {
	js := connect(t, startServer(t, nil).ClientURL())
	createBucket(t, js, 2<<20)
	s := openStore(t, js, objectstore.Options{})
	_, err := s.Put(t.Context(), "big", bytes.NewReader(objectstoretest.Bytes(1, 3<<20)))
	if !errors.Is(err, objectstore.ErrFull) {
		t.Fatalf("Put: got %v, want ErrFull", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has more than one line: %q", err)
	}
	small := objectstoretest.Bytes(2, 1<<20)
	objectstoretest.Put(t, s, "small", small)
	objectstoretest.Check(t, s, "small", small)
}

// A Put that fails with chunks under way leaves none of them, whenever the server takes them.
func TestJetStream_FailedPutLeavesNothing(t *testing.T) {
	s, js, _ := newStore(t)
	for range 20 {
		source := errors.New("source is gone")
		_, err := s.Put(t.Context(), "broken", io.MultiReader(bytes.NewReader(objectstoretest.Bytes(1, 3<<20)), iotest.ErrReader(source)))
		if !errors.Is(err, source) {
			t.Fatalf("Put: got %v, want %v", err, source)
		}
	}
	// What a server has still to store comes before what is published now.
	objectstoretest.Put(t, s, "whole", objectstoretest.Bytes(2, 10))
	if got := messages(t, js, ">"); got != 2 {
		t.Errorf("%d messages are stored, want a chunk and a record", got)
	}
}

// A request whose caller went away lives on for a moment, and must share nothing with the caller:
// the race detector sees it when it does.
func TestJetStream_CallerGoesAway(t *testing.T) {
	s, _, _ := newStore(t)
	var calls sync.WaitGroup
	for i := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		calls.Go(func() {
			defer cancel()
			if _, err := s.Clock(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Clock: got %v, want the time or %v", err, context.Canceled)
			}
		})
		calls.Go(func() {
			for range i * 100 {
				runtime.Gosched()
			}
			cancel()
		})
	}
	calls.Wait()
}

func TestNewJetStream_RefusesNegative(t *testing.T) {
	js := connect(t, startServer(t, nil).ClientURL())
	for _, o := range []objectstore.Options{{ChunkSize: -1}, {Window: -1}, {Uploads: -1}, {Stall: -1}, {Attempts: -1}} {
		if _, err := objectstore.NewJetStream(js, o); err == nil {
			t.Errorf("%+v: accepted", o)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
