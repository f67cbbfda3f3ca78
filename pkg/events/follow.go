package events

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// followRetry is the pause before a broken follower is set up again.
const followRetry = 200 * time.Millisecond

// errStopped: the receiver of a follower wants no more.
var errStopped = errors.New("stopped")

// follower delivers the messages of a stream that match a filter, in order, each once, by an ordered consumer that
// is set up again after the last delivered message when it breaks.
type follower struct {
	stream jetstream.Stream
	filter string
	next   uint64 // sequence to go on with
	oldest uint64 // last sequence of the stream at the beginning: what is newer comes after the mark
	// message receives; false ends the following.
	message func(m jetstream.Msg, seq uint64) bool
	// mark, where not nil, is called once after all that was stored at the beginning.
	mark func() bool
}

func (r *follower) loop(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.deliver(ctx); errors.Is(err, errStopped) {
			return
		}
		pause(ctx, followRetry)
	}
}

// deliver runs one ordered consumer until it breaks.
func (r *follower) deliver(ctx context.Context) error {
	c, err := r.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{r.filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.next,
	})
	if err != nil {
		return err
	}
	messages, err := c.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	if c.CachedInfo().NumPending == 0 && !r.reachedEnd() {
		return errStopped
	}
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := r.handle(m); err != nil {
			return err
		}
	}
}

func (r *follower) handle(m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	seq := meta.Sequence.Stream
	if seq < r.next {
		return nil
	}
	if seq > r.oldest && !r.reachedEnd() || !r.message(m, seq) {
		return errStopped
	}
	r.next = seq + 1
	if meta.NumPending == 0 && !r.reachedEnd() {
		return errStopped
	}
	return nil
}

// reachedEnd delivers the mark if it is still to be delivered.
func (r *follower) reachedEnd() bool {
	mark := r.mark
	r.mark = nil
	return mark == nil || mark()
}
