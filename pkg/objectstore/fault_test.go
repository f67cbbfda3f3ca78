package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

// recreate deletes the bucket and makes it again; when filled, with as many other chunks
// that the sequences of the upload go on rising.
func recreate(t *testing.T, js jetstream.JetStream, filler int) {
	t.Helper()
	must(t, js.DeleteObjectStore(t.Context(), bucket))
	recreateBucket(t, js)
	for range filler {
		_, err := js.Publish(t.Context(), "$O."+bucket+".C.FILLER", []byte("x"))
		must(t, err)
	}
}

// recreateBucket waits until the server has finished deleting.
func recreateBucket(t *testing.T, js jetstream.JetStream) {
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: bucket})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Error(err)
			return
		}
	}
}

// What the server acknowledged is lost in the middle of the upload: the result is an
// error, or an object with the right bytes; never a success with wrong ones.
func TestJetStream_StreamLostDuringPut(t *testing.T) {
	const size = 12<<19 + 7
	data := objectstoretest.Bytes(1, size)
	for _, filler := range []int{0, 50} {
		for at := int64(0); at <= size; at += 3 << 19 {
			for _, seek := range []bool{true, false} {
				t.Run(fmt.Sprintf("filler%d/at%d/seek=%v", filler, at, seek), func(t *testing.T) {
					t.Parallel()
					_, js, ob := newStore(t)
					s := openStore(t, js, objectstore.Options{Stall: time.Second})
					var r io.Reader = &hookReader{ReadSeeker: bytes.NewReader(data), at: at, hook: func() { recreate(t, js, filler) }}
					if !seek {
						r = onlyReader{r}
					}
					_, err := s.Put(t.Context(), "x", r)
					if seek && err != nil {
						t.Fatalf("Put with a reader that can seek: %v", err)
					}
					if !seek && at > 2<<20 && err == nil {
						t.Error("Put without a second try succeeded after its chunks were lost")
					}
					if err != nil {
						if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, objectstore.ErrNotFound) {
							t.Errorf("Stat after a failed Put: got %v, want ErrNotFound", err)
						}
						return
					}
					objectstoretest.Check(t, s, "x", data)
					got, err := ob.GetBytes(t.Context(), "x")
					if err != nil || !bytes.Equal(got, data) {
						t.Errorf("nats.go reads %d other bytes, %v", len(got), err)
					}
				})
			}
		}
	}
}

// For 300 ms nobody answers on the bucket's subjects. (nats.go's Put sends the bytes of a
// later chunk again after that, and returns nil.)
func TestJetStream_NoRespondersDuringPut(t *testing.T) {
	_, js, _ := newStore(t)
	s := openStore(t, js, objectstore.Options{Stall: time.Second})
	data := objectstoretest.Bytes(1, 12<<19)
	var wg sync.WaitGroup
	hook := func() {
		must(t, js.DeleteObjectStore(t.Context(), bucket))
		wg.Go(func() {
			<-time.After(300 * time.Millisecond)
			recreateBucket(t, js)
		})
	}
	_, err := s.Put(t.Context(), "x", &hookReader{ReadSeeker: bytes.NewReader(data), at: 4 << 19, hook: hook})
	wg.Wait()
	must(t, err)
	objectstoretest.Check(t, s, "x", data)
}

func proxied(t *testing.T, o objectstore.Options) (*objectstore.JetStream, *proxy, jetstream.JetStream) {
	t.Helper()
	srv := startServer(t, nil)
	direct := connect(t, srv.ClientURL())
	createBucket(t, direct, 0)
	p := startProxy(t, srv)
	return openStore(t, connect(t, p.url()), o), p, direct
}

func TestJetStream_ConnectionResetDuringPut(t *testing.T) {
	const size = 10 << 19
	data := objectstoretest.Bytes(1, size)
	for at := int64(0); at <= size; at += 2 << 19 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			s, p, _ := proxied(t, objectstore.Options{})
			_, err := s.Put(t.Context(), "x", &hookReader{ReadSeeker: bytes.NewReader(data), at: at, hook: p.cut})
			must(t, err)
			objectstoretest.Check(t, s, "x", data)
		})
	}
}

func TestJetStream_ConnectionResetDuringGet(t *testing.T) {
	s, p, _ := proxied(t, objectstore.Options{})
	data := objectstoretest.Bytes(1, 20<<19)
	objectstoretest.Put(t, s, "x", data)
	r, err := s.Get(t.Context(), "x")
	must(t, err)
	defer r.Close()
	var got bytes.Buffer
	for range 3 {
		_, err := io.CopyN(&got, r, 5<<19+100)
		must(t, err)
		p.cut()
	}
	_, err = io.Copy(&got, r)
	must(t, err)
	if !bytes.Equal(got.Bytes(), data) {
		t.Error("other bytes than stored")
	}
}

// Case I2: limits are on lack of progress. A pause passes, a stand-still fails in time.
func TestJetStream_Stall(t *testing.T) {
	const stall = 1500 * time.Millisecond
	data := objectstoretest.Bytes(1, 20<<19)
	t.Run("PausePasses", func(t *testing.T) {
		s, p, _ := proxied(t, objectstore.Options{Stall: stall})
		hook := func() {
			p.hold()
			time.AfterFunc(stall/2, p.release)
		}
		_, err := s.Put(t.Context(), "x", onlyReader{&hookReader{ReadSeeker: bytes.NewReader(data), at: 5 << 19, hook: hook}})
		must(t, err)
		r, err := s.Get(t.Context(), "x")
		must(t, err)
		defer r.Close()
		hook()
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("Get: %d bytes, %v", len(got), err)
		}
	})
	t.Run("StandStillFails", func(t *testing.T) {
		s, p, direct := proxied(t, objectstore.Options{Stall: stall})
		objectstoretest.Put(t, openStore(t, direct, objectstore.Options{}), "there", data)
		r, err := s.Get(t.Context(), "there")
		must(t, err)
		defer r.Close()
		start := time.Now()
		_, err = s.Put(t.Context(), "x", onlyReader{&hookReader{ReadSeeker: bytes.NewReader(data), at: 5 << 19, hook: p.hold}})
		if !errors.Is(err, objectstore.ErrStalled) {
			t.Errorf("Put: got %v, want ErrStalled", err)
		}
		_, err = io.Copy(io.Discard, r)
		if !errors.Is(err, objectstore.ErrStalled) {
			t.Errorf("Get: got %v, want ErrStalled", err)
		}
		if took, want := time.Since(start), 2*stall+10*time.Second; took > want {
			t.Errorf("both took %v, want less than %v", took, want)
		}
	})
}

// Case I2: a cancel in the middle of a transfer that stands still ends it within 10 s.
func TestJetStream_CancelWhileStalled(t *testing.T) {
	s, p, _ := proxied(t, objectstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	hook := func() {
		p.hold()
		time.AfterFunc(100*time.Millisecond, cancel)
	}
	start := time.Now()
	_, err := s.Put(ctx, "x", &hookReader{ReadSeeker: bytes.NewReader(objectstoretest.Bytes(1, 20<<19)), at: 5 << 19, hook: hook})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Put: got %v, want context.Canceled", err)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("Put took %v to end", took)
	}
}

// A deadline that the caller did not set still ends a Get whose server is gone.
func TestJetStream_GetServerGone(t *testing.T) {
	srv := startServer(t, nil)
	js := connect(t, srv.ClientURL())
	createBucket(t, js, 0)
	s := openStore(t, js, objectstore.Options{Stall: 500 * time.Millisecond})
	objectstoretest.Put(t, s, "x", objectstoretest.Bytes(1, 10<<19))
	r, err := s.Get(t.Context(), "x")
	must(t, err)
	defer r.Close()
	srv.Shutdown()
	if _, err := io.Copy(io.Discard, r); err == nil || errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("Get: got %v, want an error that does not blame the object", err)
	}
}

// The server refuses messages that come faster than it stores them (429, 10167).
func TestJetStream_TooManyRequests(t *testing.T) {
	js := connect(t, startServer(t, func(o *server.Options) {
		o.StreamMaxBufferedSize = 600 << 10 // one chunk fits, two do not
		o.SyncAlways = true
	}).ClientURL())
	createBucket(t, js, 0)
	s := openStore(t, js, objectstore.Options{})
	data := objectstoretest.Bytes(1, 40<<19)
	objectstoretest.Put(t, s, "x", data)
	objectstoretest.Check(t, s, "x", data)
}

// A server that leaves room on its disk, as it does by default, says that it is full.
func TestJetStream_ServerFull(t *testing.T) {
	dir := smallDisk(t, "24m")
	js := connect(t, startServer(t, func(o *server.Options) { o.StoreDir = dir }).ClientURL())
	createBucket(t, js, 0)
	s := openStore(t, js, objectstore.Options{})
	_, err := s.Put(t.Context(), "big", bytes.NewReader(objectstoretest.Bytes(1, 40<<20)))
	if !errors.Is(err, objectstore.ErrFull) {
		t.Errorf("Put: got %v, want ErrFull", err)
	}
	data := objectstoretest.Bytes(1, 2<<20)
	objectstoretest.Put(t, s, "fits", data)
	objectstoretest.Check(t, s, "fits", data)
}

// A server whose disk really is full answers nothing more on that stream.
func TestJetStream_DiskFull(t *testing.T) {
	dir := smallDisk(t, "24m")
	js := connect(t, startServer(t, func(o *server.Options) {
		o.StoreDir = dir
		o.JetStreamMaxStore = 1 << 30 // so that the disk ends before the limit
		o.SyncAlways = true
	}).ClientURL())
	createBucket(t, js, 0)
	const stall = time.Second
	s := openStore(t, js, objectstore.Options{Stall: stall})
	start := time.Now()
	_, err := s.Put(t.Context(), "big", bytes.NewReader(objectstoretest.Bytes(1, 40<<20)))
	if !errors.Is(err, objectstore.ErrStalled) || !strings.Contains(err.Error(), "disk") {
		t.Errorf("Put: got %v, want ErrStalled that speaks of the disk", err)
	}
	if took := time.Since(start); took > 2*stall+10*time.Second {
		t.Errorf("Put took %v to fail", took)
	}
}

// At most two uploads of one store transfer at the same time.
func TestJetStream_TwoUploadsAtOnce(t *testing.T) {
	s, _, _ := newStore(t)
	reading := make(chan int, 3)
	proceed := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			hook := func() {
				reading <- i
				<-proceed
			}
			r := &hookReader{ReadSeeker: bytes.NewReader([]byte("x")), hook: hook}
			if _, err := s.Put(t.Context(), fmt.Sprint("x", i), r); err != nil {
				t.Error(err)
			}
		})
	}
	<-reading
	<-reading
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Put(ctx, "waits", bytes.NewReader(nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("third Put: got %v, want it to wait", err)
	}
	if n := len(reading); n != 0 {
		t.Errorf("%d more uploads began", n)
	}
	close(proceed)
	wg.Wait()
}

// beforeMeta calls hook once, between the check of the chunks and the record.
type beforeMeta struct {
	jetstream.JetStream
	hook func()
}

func (b *beforeMeta) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if b.hook != nil {
		b.hook()
		b.hook = nil
	}
	return b.JetStream.PublishMsg(ctx, msg, opts...)
}

func TestJetStream_ChunksLostBeforeRecord(t *testing.T) {
	data := objectstoretest.Bytes(1, 2_000_000)
	lose := map[string]func(*testing.T, jetstream.JetStream){
		"Swept": func(t *testing.T, js jetstream.JetStream) {
			must(t, stream(t, js).Purge(t.Context(), jetstream.WithPurgeSubject("$O."+bucket+".C.>")))
		},
		"BucketMadeAnew": func(t *testing.T, js jetstream.JetStream) { recreate(t, js, 50) },
	}
	for name, lose := range lose {
		t.Run(name, func(t *testing.T) {
			_, js, _ := newStore(t)
			s := openStore(t, &beforeMeta{js, func() { lose(t, js) }}, objectstore.Options{})
			if _, err := s.Put(t.Context(), "once", onlyReader{bytes.NewReader(data)}); err == nil {
				t.Error("Put without a second try succeeded after its chunks were lost")
			}
			if _, err := s.Stat(t.Context(), "once"); !errors.Is(err, objectstore.ErrNotFound) {
				t.Errorf("Stat: got %v, want ErrNotFound", err)
			}
			s = openStore(t, &beforeMeta{js, func() { lose(t, js) }}, objectstore.Options{})
			objectstoretest.Put(t, s, "twice", data)
			objectstoretest.Check(t, s, "twice", data)
		})
	}
}
