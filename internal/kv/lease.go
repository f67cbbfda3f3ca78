package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

var (
	// ErrHeld: somebody else holds the lease.
	ErrHeld = errors.New("lease is held")
	// ErrLost: the lease is no longer held.
	ErrLost = errors.New("lease is lost")
)

// renewals is how many chances to renew lie in a time to live.
const renewals = 3

// LeaseOptions say which lease and for whom.
type LeaseOptions struct {
	Key   string
	Owner string // for people; two owners of one name are still two
	// TTL is the bucket's time to live. A holder whose last renewal is as long ago as TTL less a renewal interval gives the lease
	// up by itself, before the bucket does.
	TTL time.Duration
}

// Lease is held until Release, or until Lost. It limits doubled work; what must not be done twice needs a fence as well.
type Lease struct {
	bucket Bucket
	opts   LeaseOptions
	value  []byte // has a nonce, so that a write whose answer was lost is recognised

	lost   chan struct{}
	stop   context.CancelFunc
	ended  chan struct{} // closed when the renewing goroutine is done
	mu     sync.Mutex
	rev    uint64
	isLost bool
}

// leaseValue is the stored form: fields may be added, none renamed.
type leaseValue struct {
	Owner string `json:"owner"`
	Nonce string `json:"nonce"`
}

// Acquire takes the lease if nobody holds it, else ErrHeld, and renews it in the background. Whether it is taken is decided by a
// compare-and-set, never by a read.
func Acquire(ctx context.Context, b Bucket, o LeaseOptions) (*Lease, error) {
	value, err := json.Marshal(leaseValue{Owner: o.Owner, Nonce: ulid.Make().String()})
	if err != nil {
		return nil, fmt.Errorf("kv: acquire lease %q: %w", o.Key, err)
	}
	l := &Lease{bucket: b, opts: o, value: value, lost: make(chan struct{}), ended: make(chan struct{})}
	start := time.Now()
	l.rev, err = b.Create(ctx, o.Key, value)
	if err != nil {
		l.rev, err = l.claimOwn(ctx, err)
	}
	if errors.Is(err, ErrExists) || errors.Is(err, ErrConflict) {
		err = ErrHeld
	}
	if err != nil {
		return nil, fmt.Errorf("kv: acquire lease %q: %w", o.Key, err)
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.keep(renewing, start)
	return l, nil
}

// claimOwn looks whether the record is ours after all: its answer may have been lost. If so, an update proves it.
func (l *Lease) claimOwn(ctx context.Context, cause error) (uint64, error) {
	e, err := l.bucket.Get(ctx, l.opts.Key)
	if err != nil || !bytes.Equal(e.Value, l.value) {
		return 0, cause
	}
	return l.bucket.Update(ctx, l.opts.Key, l.value, e.Revision)
}

// Renew renews the lease now. ErrLost: somebody else has it, or it expired. Other errors leave it as it was.
func (l *Lease) Renew(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost {
		return fmt.Errorf("kv: renew lease %q: %w", l.opts.Key, ErrLost)
	}
	rev, err := l.bucket.Update(ctx, l.opts.Key, l.value, l.rev)
	if errors.Is(err, ErrConflict) {
		rev, err = l.claimOwn(ctx, err)
	}
	if errors.Is(err, ErrConflict) {
		l.lose()
		err = ErrLost
	}
	if err != nil {
		return fmt.Errorf("kv: renew lease %q: %w", l.opts.Key, err)
	}
	l.rev = rev
	return nil
}

// Lost is closed when the lease is no longer held: taken by somebody else, not renewed in time, or released.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Release gives the lease up at once. It is no error when it was lost before.
func (l *Lease) Release(ctx context.Context) error {
	l.stop()
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost {
		return nil
	}
	l.lose()
	err := l.bucket.Delete(ctx, l.opts.Key, l.rev)
	if err != nil && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("kv: release lease %q: %w", l.opts.Key, err)
	}
	return nil
}

// lose closes Lost. The lock is held.
func (l *Lease) lose() {
	if !l.isLost {
		l.isLost = true
		close(l.lost)
	}
}

// keep renews until the lease is lost or released. After a failure it tries more often.
func (l *Lease) keep(ctx context.Context, last time.Time) {
	defer close(l.ended)
	interval := l.opts.TTL / renewals
	wait := interval
	for {
		deadline := last.Add(l.opts.TTL - interval/2)
		if !l.idle(ctx, min(wait, time.Until(deadline))) {
			return
		}
		start := time.Now()
		if !start.Before(deadline) {
			l.mu.Lock()
			l.lose()
			l.mu.Unlock()
			return
		}
		try, cancel := context.WithDeadline(ctx, deadline)
		err := l.Renew(try)
		cancel()
		wait = interval / 4
		if err == nil {
			last, wait = start, interval
		}
	}
}

// idle waits and tells whether the lease is still to be renewed.
func (l *Lease) idle(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-l.lost:
		return false
	case <-ctx.Done():
		return false
	}
}

// Lead runs lead while this process holds the lease, again and again until ctx ends. The context of lead ends when
// the lease is lost; lead has to return then. It waits a renewal interval when somebody else holds the lease or lead returned.
func Lead(ctx context.Context, b Bucket, o LeaseOptions, lead func(context.Context)) {
	for ctx.Err() == nil {
		if l, err := Acquire(ctx, b, o); err == nil {
			l.run(ctx, lead)
		}
		timer := time.NewTimer(o.TTL / renewals)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (l *Lease) run(ctx context.Context, lead func(context.Context)) {
	leading, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.lost:
			cancel()
		case <-leading.Done():
		}
	}()
	lead(leading)
	release, done := context.WithTimeout(context.WithoutCancel(ctx), l.opts.TTL/renewals)
	defer done()
	// What cannot be released expires.
	_ = l.Release(release)
}
